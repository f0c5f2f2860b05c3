from datetime import timedelta

import torch
import torch.distributed as dist

from tests.ranks import on_ranks
from thinwire import comm

CPU = torch.device("cpu")


def groups_of_a_subgroup(rank: int) -> list[float]:
    """Sums over two groups like a subgroup, made by its ranks alone: rank 0 takes no part, and nobody waits for it."""
    pair = dist.new_group([1, 2], timeout=timedelta(seconds=17))
    if rank == 0:
        return []
    sums = []
    groups = comm.like(pair, 2, CPU)
    for group in groups:
        assert comm.timeout_of(group, CPU) == timedelta(seconds=17)
        assert dist.get_process_group_ranks(group) == [1, 2]
        value = torch.full((1,), float(rank))
        comm.allreduce(group, value).wait()
        sums.append(value.item())
    assert groups[0] is not groups[1] is not pair
    return sums


def test_groups_like_a_subgroup():
    assert on_ranks(3, groups_of_a_subgroup) == [[], [3.0, 3.0], [3.0, 3.0]]
