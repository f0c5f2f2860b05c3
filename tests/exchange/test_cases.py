"""Faults that users of such libraries ran into; the numbers are those of the project's list of cases.

Those about the training loop are beside its other tests, and those of compressors alone in ``tests/compress``:
``pytest -k c08`` finds a case wherever it is.
"""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.training import LOSSY, Given, assert_same_bits, assert_same_errors, batch, own_errors
from tests.ranks import on_ranks


def parallel(*parameters: torch.Tensor, group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    return DistributedDataParallel(Given(*parameters), process_group=group)


def exchange(ddp: DistributedDataParallel, *gradients: torch.Tensor) -> list[torch.Tensor]:
    ddp.zero_grad()
    ddp(*gradients).backward()
    return [p.grad.clone() for p in ddp.module.weights]


def large_and_tiny(rank):
    def full(value: float) -> torch.Tensor:
        return torch.full((32, 32), value)

    for scheme in ("allreduce", "reduce_scatter", "allgather"):
        ddp = parallel(full(0.0))
        sync = thinwire.attach(ddp, "fp16", scheme=scheme)
        assert torch.equal(exchange(ddp, full(30000.0))[0], full(30000.0))
        applied = sum(exchange(ddp, full(1e-7))[0] for _ in range(100))
        torch.testing.assert_close(applied, full(1e-5), rtol=0.01, atol=0)
        errors = own_errors(sync)
        beyond = exchange(ddp, full(70000.0))[0]
        if scheme == "allgather":  # added up in float32
            torch.testing.assert_close(beyond, full(70000.0), rtol=2**-11, atol=0)
        else:
            assert torch.equal(beyond, full(torch.inf))
            assert_same_errors(sync, errors)
        assert exchange(ddp, full(1.0))[0].isfinite().all()


def test_c02_fp16_neither_overflows_below_its_range_nor_loses_what_is_small():
    on_ranks(4, large_and_tiny)


def overflow_of_a_result(rank):
    # Each gradient fits fp16, but not together with what is pending.
    ddp = parallel(torch.zeros(1, 100, dtype=torch.float16))
    sync = thinwire.attach(ddp, "topk(ratio=0.01)", min_numel=16)
    first, second = torch.zeros(1, 100, dtype=torch.float16), torch.zeros(1, 100, dtype=torch.float16)
    first[0, :2] = torch.tensor([60000.0, 49984.0])
    second[0, 1] = 30720.0
    assert exchange(ddp, first)[0][0, 0] == 60000.0
    errors = own_errors(sync)
    assert exchange(ddp, second)[0][0, 1] == torch.inf
    assert_same_errors(sync, errors)
    assert sync.stats().non_finite_steps == 1
    assert exchange(ddp, second / 4)[0][0, 1] == 57664.0


def test_c02_a_result_too_large_for_its_parameter_is_not_lost():
    on_ranks(2, overflow_of_a_result)


def shared_places(rank):
    torch.manual_seed(rank)
    before = torch.get_rng_state()
    for scaled, value in ((False, 1.5), (True, 15.0)):
        ddp = parallel(torch.zeros(10, 100), torch.zeros(10, 100))
        thinwire.attach(ddp, f"randomk(ratio=0.1, scaled={scaled})", min_numel=16, error_feedback=False)
        seen = []
        for _ in range(3):
            for result in exchange(ddp, *[torch.full((10, 100), rank + 1.0)] * 2):
                places = result.nonzero()
                assert len(places) == 100
                torch.testing.assert_close(result[result != 0], torch.full((100,), value))
                assert_same_bits({"result": result})
                assert not any(torch.equal(places, other) for other in seen)  # new in each step and parameter
                seen.append(places)
    assert torch.equal(torch.get_rng_state(), before)


def test_c14_random_places_are_shared_and_change():
    on_ranks(2, shared_places)


def own_noise(rank):
    # The same gradient on both ranks: the same noise would leave one level's distance between all results.
    ddp = parallel(torch.zeros(10, 100))
    thinwire.attach(ddp, "linear_dithering(bits=2, block=0)", min_numel=16, scheme="allgather")
    gradient = torch.full((10, 100), 0.5)
    gradient[0, 0] = 1.0  # the largest, so 0.5 lies between two levels
    levels = exchange(ddp, gradient)[0].flatten()[1:].unique()
    assert len(levels) == 3


def test_c14_every_rank_has_noise_of_its_own():
    on_ranks(2, own_noise)


def last_of_many(rank):
    gradient = torch.zeros(70, 1000, dtype=torch.float16)
    gradient[-1, -1] = 1.0
    for spec in ("topk(ratio=1e-9)", "topk(ratio=1e-9, values=fp32)"):
        for chunk_bytes in (4 << 20, 1 << 16):
            ddp = parallel(torch.zeros_like(gradient))
            thinwire.attach(ddp, spec, chunk_bytes=chunk_bytes)
            assert torch.equal(exchange(ddp, gradient)[0], gradient)


def test_c19_the_last_of_seventy_thousand_is_decoded_at_its_place():
    on_ranks(2, last_of_many)


def subgroups(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.new_group([0])  # ranks may be in different numbers of groups
    group = groups[rank // 2]
    # The second pair begins when the first has ended: if a group waited for the other, this would not return.
    if rank >= 2:
        dist.recv(torch.zeros(1), src=rank - 2)
    for spec, scheme in (("none", None), ("none", "reduce_scatter"), *((s, None) for s in LOSSY), ("int8", "alltoall")):
        ddp = parallel(torch.zeros(32, 32), torch.zeros(5), group=group)
        thinwire.attach(ddp, spec, scheme=scheme, min_numel=16, error_feedback=True)
        matrix, vector = exchange(ddp, torch.full((32, 32), float(rank)), torch.full((5,), float(rank)))
        mean = (0.5, 2.5)[rank // 2]
        assert torch.equal(vector, torch.full((5,), mean))
        if not spec.startswith("topk"):
            torch.testing.assert_close(matrix, torch.full((32, 32), mean), rtol=0.01, atol=0)
        assert_same_bits({"matrix": matrix}, group)
    if rank < 2:
        dist.send(torch.zeros(1), dst=rank + 2)


def test_c20_subgroups_have_means_of_their_own_and_do_not_wait_for_each_other():
    on_ranks(4, subgroups)


def warm_up(rank):
    def attach() -> tuple[DistributedDataParallel, thinwire.Sync]:
        ddp = parallel(torch.zeros(32, 32))
        return ddp, thinwire.attach(ddp, "onebit", start_step=20)

    def step(ddp: DistributedDataParallel, number: int) -> bool:
        """Whether the step was compressed."""
        result = exchange(ddp, batch(rank, number, 32, 32))[0]
        return not torch.equal(result, (batch(0, number, 32, 32) + batch(1, number, 32, 32)) / 2)

    ddp, sync = attach()
    assert [step(ddp, number) for number in range(50)] == [False] * 20 + [True] * 30
    saved = sync.state_dict()
    ddp, sync = attach()
    sync.load_state_dict(saved)
    assert sync.step == 50
    assert step(ddp, 51)
    return sync.step


def test_c22_warm_up_is_not_repeated_after_a_restart():
    assert on_ranks(2, warm_up) == [51, 51]


def ratio_of_few(rank):
    for numel, sent in ((1000, 100), (5, 1)):
        ddp = parallel(torch.zeros(1, numel))
        thinwire.attach(ddp, "topk(ratio=0.1)", scheme="allgather", min_numel=1)
        gradient = torch.arange(1.0, numel + 1).view(1, numel)
        result = exchange(ddp, gradient)[0]
        assert result.count_nonzero() == sent
        torch.testing.assert_close(result[0, -sent:], gradient[0, -sent:], rtol=2**-11, atol=0)
    for ratio in ("0", "-1", "1.5", "nan"):
        with pytest.raises(ValueError, match="ratio"):
            thinwire.attach(parallel(torch.zeros(1, 1000)), f"topk(ratio={ratio})")


def test_c12_exactly_the_ratio_is_sent_and_wrong_ratios_are_refused():
    on_ranks(2, ratio_of_few)
