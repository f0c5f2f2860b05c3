"""Every routine on 1, 2 and 3 ranks; rank r contributes multiples of r + 1, so results are formulas."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import on_ranks
from thinwire import comm

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
BASE = torch.arange(12)


def reduce_scatter(group: dist.ProcessGroup, sent: Tensor, received: Tensor, dtype: torch.dtype) -> None:
    parts = torch.empty_like(sent)
    comm.alltoall(group, sent, parts).wait()
    comm.add_rows(parts, received, dtype)


def all_routines(rank: int) -> dict[str, Tensor]:
    group = dist.group.WORLD
    size, mine = group.size(), rank + 1
    results = {}
    for dtype in DTYPES:
        results[f"allreduce {dtype}"] = buffer = (BASE * mine).to(dtype)
        comm.allreduce(group, buffer).wait()
    sparse = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (5,), check_invariants=True)
    comm.allreduce(group, sparse).wait()
    results["sparse"] = sparse.to_dense()

    results["allgather"] = torch.empty(size * 12, dtype=torch.uint8)
    comm.allgather(group, (BASE * mine).to(torch.uint8), results["allgather"]).wait()

    parts = torch.stack([BASE[:4] * mine + 100 * to for to in range(size)]).to(torch.uint8)
    results["alltoall"] = torch.empty(size * 4, dtype=torch.uint8)
    comm.alltoall(group, parts.view(-1), results["alltoall"]).wait()

    for dtype in DTYPES[:4]:
        parts = torch.stack([(BASE[:4] * mine + 8 * to).to(dtype) for to in range(size)])
        received = torch.empty(4 * dtype.itemsize, dtype=torch.uint8)
        reduce_scatter(group, parts.view(-1).view(torch.uint8), received, dtype)
        results[f"reduce_scatter {dtype}"] = received.view(dtype)
    return results


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results(size):
    total = size * (size + 1) // 2
    for rank, results in enumerate(on_ranks(size, all_routines)):
        for dtype in DTYPES:
            torch.testing.assert_close(results[f"allreduce {dtype}"], (BASE * total).to(dtype), rtol=0, atol=0)
        assert results["sparse"].tolist() == [float(size)] + [2.0 if r < size else 0.0 for r in range(4)]
        assert results["allgather"].tolist() == [int(b) * (r + 1) for r in range(size) for b in BASE]
        assert results["alltoall"].tolist() == [int(b) * (r + 1) + 100 * rank for r in range(size) for b in BASE[:4]]
        for dtype in DTYPES[:4]:
            want = (BASE[:4] * total + 8 * rank * size).to(dtype)
            torch.testing.assert_close(results[f"reduce_scatter {dtype}"], want, rtol=0, atol=0)


def reduce_scatter_in_order(rank: int) -> float:
    # In float32, (1e8 + 1) - 1e8 is 0; in any other order that brings the large ones together first it is 1.
    mine = [1e8, 1.0, -1e8][rank]
    received = torch.empty(4, dtype=torch.uint8)
    sent = torch.full((3,), mine).view(torch.uint8)
    reduce_scatter(dist.group.WORLD, sent, received, torch.float32)
    return received.view(torch.float32).item()


def test_reduce_scatter_adds_in_rank_order():
    assert on_ranks(3, reduce_scatter_in_order) == [0.0] * 3
