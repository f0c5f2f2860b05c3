"""What users do around backward works as with plain DDP."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.training import (
    LOSSY,
    Given,
    assert_conserved,
    assert_same_bits,
    assert_same_errors,
    gradients,
    local_gradients,
    loss_of,
    mlp,
    own_errors,
    pending,
)
from tests.ranks import on_ranks

EXACT = ("plain", None, "reduce_scatter")  # DDP alone, and schemes of the spec "none"


def parallel(spec: str | None, scheme: str | None = None, **options: object) -> tuple[DistributedDataParallel, object]:
    """A model in several buckets, attached unless ``spec`` is None."""
    ddp = DistributedDataParallel(mlp(), **{"bucket_cap_mb": 0.01} | options)
    return ddp, thinwire.attach(ddp, spec, scheme=scheme, min_numel=256, chunk_bytes=5000) if spec else None


def exactly_parallel(kind: str | None, **options: object) -> DistributedDataParallel:
    return parallel(None if kind == "plain" else "none", None if kind == "plain" else kind, **options)[0]


def train(ddp: nn.Module, rank: int, num_steps: int = 4) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    return {n: p.detach().clone() for n, p in ddp.module.named_parameters()}


def assert_all_equal(*states: dict[str, torch.Tensor]) -> None:
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name in state:
            assert torch.equal(state[name], states[0][name]), name


def nothing_compressed_equals_ddp(rank):
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        assert_all_equal(*(train(exactly_parallel(kind, **options), rank) for kind in EXACT))


def test_nothing_compressed_equals_ddp():
    on_ranks(2, nothing_compressed_equals_ddp)


def reduce_scatter_is_near_ddp(rank):
    expected = train(exactly_parallel("plain"), rank)
    for name, value in train(exactly_parallel("reduce_scatter"), rank).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


def test_reduce_scatter_is_near_ddp_where_rounding_differs():
    on_ranks(3, reduce_scatter_is_near_ddp)


def bucket_views_and_static_graph(rank, spec):
    states = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 25}):
        states.append(train(parallel(spec, **options)[0], rank))
    assert_all_equal(*states)
    assert_same_bits(states[0])


@pytest.mark.parametrize("spec", LOSSY)
def test_bucket_views_static_graph_and_bucket_size_change_no_bit(spec):
    on_ranks(2, bucket_views_and_static_graph, spec)


def accumulation(rank):
    for spec in ("none", *LOSSY):
        ddp = DistributedDataParallel(Given(torch.zeros(32, 32), torch.zeros(3)))
        sync = thinwire.attach(ddp, spec, min_numel=16, error_feedback=True)
        first, second = ((1.0, 3.0), (2.0, 5.0))[rank]
        wave = torch.linspace(-0.5, 0.5, 1024).view(32, 32)
        local = {"weights.0": (first + second) * wave, "weights.1": torch.full((3,), first + second)}
        with ddp.no_sync():
            ddp(first * wave, torch.full((3,), first)).backward()
        assert sync.step == 0
        assert not own_errors(sync)
        before = pending(sync)
        ddp(second * wave, torch.full((3,), second)).backward()
        assert sync.step == 1
        result = gradients(ddp.module)
        assert_same_bits(result)
        assert torch.equal(result["weights.1"], torch.full((3,), 5.5))
        if spec == "none":
            torch.testing.assert_close(result["weights.0"], 5.5 * wave)
        else:
            assert_conserved(local, before, result, pending(sync))


def test_c04_accumulated_gradients_are_exchanged_once():
    on_ranks(2, accumulation)


def backward_twice(rank):
    # The second backward starts from the first one's mean, and exchanges the sum.
    results = []
    for kind in EXACT:
        ddp = exactly_parallel(kind)
        for step in range(2):
            loss_of(ddp, rank, step).backward()
        results.append(gradients(ddp.module))
    assert_all_equal(*results)
    for spec in LOSSY:
        ddp, sync = parallel(spec)
        for step in range(3):
            so_far = gradients(ddp.module)
            local = {n: g + so_far.get(n, 0) for n, g in local_gradients(ddp, rank, step).items()}
            before = pending(sync)
            loss_of(ddp, rank, step).backward()
            assert_conserved(local, before, gradients(ddp.module), pending(sync))
        assert_same_bits(gradients(ddp.module))


def test_two_synchronised_backwards_before_a_step():
    on_ranks(2, backward_twice)


def retained_graph(rank):
    results = []
    for kind in EXACT:
        ddp = exactly_parallel(kind)
        loss = loss_of(ddp, rank, 0)
        loss.backward(retain_graph=True)
        loss.backward()
        results.append(gradients(ddp.module))
    assert_all_equal(*results)


def test_second_backward_of_one_forward_stays_local_as_in_ddp():
    on_ranks(2, retained_graph)


def clipping(rank):
    for spec in ("none", *LOSSY):
        ddp, sync = parallel(spec)
        for step in range(3):
            ddp.zero_grad()
            loss_of(ddp, rank, step).backward()
            errors = own_errors(sync)
            norm = torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
            assert norm > 0.01
            assert_same_bits({"norm": norm})
            assert_same_errors(sync, errors)
            clipped = torch.cat([p.grad.flatten() for p in ddp.parameters()]).norm()
            torch.testing.assert_close(clipped, torch.tensor(0.01), rtol=1e-3, atol=0)


def test_c11_clipping_gives_one_norm_and_leaves_errors_alone():
    on_ranks(2, clipping)


def optimizers(rank):
    for spec in ("none", *LOSSY):
        runs = []
        for set_to_none in (True, False):
            ddp, _ = parallel(spec)
            matrices = [p for p in ddp.parameters() if p.dim() == 2]
            vectors = [p for p in ddp.parameters() if p.dim() == 1]
            optimizer = torch.optim.AdamW(
                [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 3e-3, "weight_decay": 0.0}],
                lr=1e-2,
            )
            for step in range(5):
                optimizer.zero_grad(set_to_none=set_to_none)
                loss_of(ddp, rank, step).backward()
                optimizer.step()
            moments = {str(i): s["exp_avg_sq"] for i, s in enumerate(optimizer.state.values())}
            runs.append(dict(ddp.module.named_parameters()) | moments)
        assert_all_equal(*runs)
        assert_same_bits(runs[0])


def test_param_groups_and_both_ways_of_zero_grad():
    on_ranks(2, optimizers)
