"""ACP-SGD (arXiv 2306.08881) and Power-SGD (arXiv 1905.13727) in the exchange, against their recurrences in float64."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.given import Trace, attach, bits, errors_of, exchanged, given_ddp, given_gradients
from tests.ranks import on_ranks
from thinwire import comm
from thinwire.compress import Key, parse, unit_hash

NUM_RANKS, NUM_STEPS, RANK = 3, 20, 3
SHAPES = {
    "square": (48, 48),
    "bias": (48,),
    "wide": (5, 200),
    "tall": (257, 12),
    "convolution": (16, 8, 3, 3),
    "small": (4, 5),
    "few": (2, 500),
}
COMPRESSED = ["square", "wide", "tall", "convolution"]


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    """As in training: a few directions that stay, in every matrix, and noise that differs between ranks and steps.

    Of pure noise no direction stands out, so subspace iteration amplifies every rounding error.
    """
    noise, result = given_gradients(rank, step, SHAPES), {}
    for name, shape in SHAPES.items():
        generator = torch.Generator().manual_seed(unit_hash(name) >> 1)
        signal = torch.zeros(shape)
        for strength in (1.5, 1.25, 1.0) if len(shape) > 1 else ():
            left = torch.randn(shape[0], *[1] * (len(shape) - 1), generator=generator)
            signal += strength * left * torch.randn(1, *shape[1:], generator=generator)
        result[name] = signal + 0.1 * noise[name]
    return result


def trace(rank: int, spec: str, error_feedback: bool) -> Trace:
    ddp = given_ddp(SHAPES)
    sync = attach(ddp, spec, min_numel=0, error_feedback=error_feedback, seed=3)
    results, errors = [], [errors_of(sync)]
    for step in range(NUM_STEPS):
        results.append(exchanged(ddp, gradients(rank, step)))
        errors.append(errors_of(sync))
    sync.detach()
    return Trace(results, errors, (0, 0))


def gradient(rank: int, step: int, name: str) -> Tensor:
    return gradients(rank, step)[name].double()


def orthonormal(columns: Tensor) -> Tensor:
    q, r = torch.linalg.qr(columns)
    return q * r.diagonal().sign()


class Papers:
    """One matrix on all workers, as the papers write it: P [n, r], Q [m, r], one error for each worker."""

    def __init__(self, name: str, spec: str, error_feedback: bool) -> None:
        self.name, self.method, self.feedback = name, parse(spec), error_feedback
        self.n, self.m = SHAPES[name][0], math.prod(SHAPES[name][1:])
        self.E = [torch.zeros(self.n, self.m, dtype=torch.float64) for _ in range(NUM_RANKS)]
        self.P, self.Q = self.random(step=0)

    def random(self, step: int) -> tuple[Tensor, Tensor]:
        place = f"{self.name}[0:{self.n * self.m}]"
        state = self.method.new_state(SHAPES[self.name], Key(3, step, unit_hash(place)))
        return tuple(factor.double().T for factor in state.save().values())

    def run(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """The gradient that every worker gets, and the workers' errors, step by step."""
        for step in range(NUM_STEPS):
            M = [gradient(rank, step, self.name).view(self.n, self.m) + self.E[rank] for rank in range(NUM_RANKS)]
            if self.method.id == "powersgd":
                result, left = self.power(M)
            else:
                result, left = self.alternate(M, step)
            if self.feedback:
                self.E = left
            yield result, self.E

    def power(self, M: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        P = orthonormal(mean([x @ self.Q for x in M]))
        Q = [x.T @ P for x in M]
        self.Q = mean(Q)
        return P @ self.Q.T, [x - P @ q.T for x, q in zip(M, Q, strict=True)]

    def alternate(self, M: list[Tensor], step: int) -> tuple[Tensor, list[Tensor]]:
        if step % 2 == 0:
            Q = orthonormal(self.Q)
            P = [x @ Q for x in M]
            self.P = mean(P)
            return self.P @ Q.T, [x - p @ Q.T for x, p in zip(M, P, strict=True)]
        P = orthonormal(self.P)
        Qs = [x.T @ P for x in M]
        self.Q = mean(Qs)
        return P @ self.Q.T, [x - P @ q.T for x, q in zip(M, Qs, strict=True)]


def mean(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).mean(0)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5 of the whole matrix's norm."""
    assert (actual.double() - expected).norm() <= 1e-5 * expected.norm() + 1e-12


@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize("method", ["acpsgd", "powersgd"])
def test_twenty_steps_are_those_of_the_papers(method, error_feedback):
    spec = f"{method}(approx_rank={RANK})"
    traces = on_ranks(NUM_RANKS, trace, spec, error_feedback)
    assert {name for name, _, _ in traces[0].errors[-1]} == (set(COMPRESSED) if error_feedback else set())
    for name in COMPRESSED:
        for step, (result, errors) in enumerate(Papers(name, spec, error_feedback).run()):
            for rank in range(NUM_RANKS):
                assert_near(traces[rank].results[step][name].view(result.shape), result)
                if error_feedback:
                    assert_near(traces[rank].errors[step + 1][name, 0, 0].view(result.shape), errors[rank])


@pytest.mark.parametrize("method", ["acpsgd", "powersgd"])
def test_ranks_agree_to_the_bit_and_nothing_is_lost(method):
    traces = on_ranks(NUM_RANKS, trace, f"{method}(approx_rank={RANK})", True)
    for step in range(NUM_STEPS):
        assert all(bits(t.results[step]) == bits(traces[0].results[step]) for t in traces)
        for name in SHAPES:
            entered = mean([gradient(rank, step, name).flatten() for rank in range(NUM_RANKS)])
            left = torch.zeros_like(entered)
            if name in COMPRESSED:
                before, after = (
                    mean([t.errors[s][name, 0, 0].double() if (name, 0, 0) in t.errors[s] else left for t in traces])
                    for s in (step, step + 1)
                )
                entered, left = entered + before, after
            sent = traces[0].results[step][name].flatten().double()
            assert (sent + left - entered).abs().max() <= 1e-5 * entered.abs().max()


def counted_collectives(rank: int, spec: str | None, num_steps: int) -> list[tuple[int, int]]:
    """Of each step: the number of all-reduces, and their bytes."""
    counts: list[list[int]] = []
    original = comm.allreduce

    def counting(group, buffer):
        counts[-1].append(buffer.numel() * buffer.element_size())
        return original(group, buffer)

    comm.allreduce = counting
    try:
        model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(512, 512), nn.ReLU())))
        ddp = DistributedDataParallel(model, bucket_cap_mb=1)
        sync = thinwire.attach(ddp, spec) if spec else thinwire.attach(ddp, "none")
        for _ in range(num_steps):
            counts.append([])
            ddp(torch.randn(2, 512)).sum().backward()
        num_buckets = len(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))
        sync.detach()
    finally:
        comm.allreduce = original
    return [(len(c), sum(c)) for c in counts], num_buckets


def test_one_all_reduce_for_each_bucket_and_half_of_power_sgds_bytes():  # C01
    (plain, num_buckets), *_ = on_ranks(4, counted_collectives, None, 6)
    assert num_buckets > 2
    assert all(count == num_buckets for count, _ in plain[2:])
    (acp, _), *_ = on_ranks(4, counted_collectives, "acpsgd(approx_rank=4)", 6)
    (power, _), *_ = on_ranks(4, counted_collectives, "powersgd(approx_rank=4)", 6)
    assert all(count == num_buckets for count, _ in acp[2:])
    assert all(count == 2 * num_buckets for count, _ in power[2:])
    vectors = 3 * 512 * 4
    factors = [nbytes - vectors for _, nbytes in acp]
    for (_, both), (left, right) in zip(power[2:], pairwise(factors[2:]), strict=False):
        assert left + right == pytest.approx(both - vectors, rel=0.02)
        assert left + right == 3 * 4 * 4 * (512 + 512)
