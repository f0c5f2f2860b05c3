"""Process groups of the exchange's own, beside the one that DDP uses."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup


def timeout_of(group: ProcessGroup, device: torch.device) -> timedelta:
    """How long the group's collectives wait for a peer before they fail."""
    timeout = group._get_backend(device).options._timeout
    assert isinstance(timeout, timedelta)
    return timeout


def like(group: ProcessGroup, count: int, device: torch.device) -> list[ProcessGroup]:
    """``count`` new groups of the same ranks, backend and timeout as ``group``.

    Collective over the ranks of ``group`` alone: other subgroups of the job neither take part nor wait.
    """
    ranks = dist.get_process_group_ranks(group)
    _even_out(group)
    return [
        dist.new_group(
            ranks,
            timeout=timeout_of(group, device),
            backend=dist.get_backend(group),
            use_local_synchronization=True,
        )
        for _ in range(count)
    ]


def _even_out(group: ProcessGroup) -> None:
    """Put every rank of ``group`` into equally many process groups.

    A group that is made without the rest of the job gets its name from that number, and ranks that disagree about the
    name wait for each other until the timeout.
    """
    own = len(dist.distributed_c10d._world.pg_names)
    counts = [own] * group.size()
    if group.size() > 1:
        dist.all_gather_object(counts, own, group=group)
    for _ in range(max(counts) - own):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
