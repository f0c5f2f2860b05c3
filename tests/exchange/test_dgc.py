"""Deep Gradient Compression (arXiv 1712.01887) in the exchange, against its algorithm in float64."""

import math

import pytest
import torch
from torch import Tensor

from tests.exchange.given import CHUNK_BYTES, SHAPES, attach, bits, exchanged, given_ddp, given_gradients
from tests.exchange.test_schemes import COMPRESSED, cut
from tests.ranks import on_ranks

NUM_RANKS, NUM_STEPS, WARMUP_STEPS = 2, 6, 4
RATIO, MOMENTUM, CLIP = 0.05, 0.8, 10.0
SPEC = f"dgc(ratio={RATIO}, momentum={MOMENTUM}, values=fp32, warmup_steps={WARMUP_STEPS}"

Kept = dict[tuple[str, int], Tensor]


def kept(state: dict) -> tuple[Kept, Kept, Kept]:
    """Workers' errors v, velocities u, and servers' errors of one rank, by parameter and first element."""
    errors = [{(e["name"], e["start"]): e["error"] for e in state["errors"] if e["stage"] == s} for s in (0, 1)]
    return errors[0], {(s["name"], s["start"]): s["tensors"]["velocity"] for s in state["states"]}, errors[1]


def trace(rank: int, spec: str, scheme: str) -> list[tuple[dict[str, Tensor], tuple[Kept, Kept, Kept], int]]:
    """Of each step: its result, what is kept after it, and the bytes that were sent."""
    ddp = given_ddp()
    sync = attach(ddp, spec, scheme=scheme)
    steps = []
    for step in range(NUM_STEPS):
        result = exchanged(ddp, given_gradients(rank, step))
        steps.append((result, kept(sync.state_dict()), sync.stats().last.payload_bytes))
    sync.detach()
    return steps


def ratio_of(step: int) -> float:
    return max(RATIO, [0.25, 0.0625, 0.015625, 0.004][step]) if step < WARMUP_STEPS else RATIO


def largest(x: Tensor, ratio: float) -> Tensor:
    """Where the largest are."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[x.abs().topk(math.floor(ratio * len(x) + 0.5)).indices] = True
    return mask


class Paper:
    """Algorithm 4 of the paper on all workers, for one region (or part of one that a rank serves)."""

    def __init__(self, name: str, start: int, stop: int, clip: float, two_way: bool) -> None:
        self.name, self.start, self.stop, self.clip, self.two_way = name, start, stop, clip, two_way
        self.u = [torch.zeros(stop - start, dtype=torch.float64) for _ in range(NUM_RANKS)]
        self.v = [torch.zeros(stop - start, dtype=torch.float64) for _ in range(NUM_RANKS)]
        self.server = torch.zeros(stop - start, dtype=torch.float64)

    def step(self, step: int) -> Tensor:
        total = torch.zeros_like(self.server)
        for rank in range(NUM_RANKS):
            g = given_gradients(rank, step)[self.name].flatten()[self.start : self.stop].double()
            if self.clip:
                g *= min(1.0, self.clip * NUM_RANKS**-0.5 / g.norm())
            self.u[rank] = MOMENTUM * self.u[rank] + g
            self.v[rank] = self.v[rank] + self.u[rank]
            mask = largest(self.v[rank], ratio_of(step))
            total += self.v[rank] * mask
            self.v[rank] = self.v[rank] * ~mask
            self.u[rank] = self.u[rank] * ~mask
        mean = total / NUM_RANKS
        if self.two_way:
            mean = mean + self.server
            mask = largest(mean, ratio_of(step))
            self.server, mean = mean * ~mask, mean * mask
        return mean


@pytest.mark.parametrize("scheme", ["allgather", "alltoall"])
@pytest.mark.parametrize("clip", [0.0, CLIP])
def test_steps_are_those_of_the_paper(scheme, clip):
    traces = on_ranks(NUM_RANKS, trace, f"{SPEC}, clip={clip})", scheme)
    clipped = False
    for name in COMPRESSED:
        numel = math.prod(SHAPES[name])
        for chunk in cut(0, numel, -(-4 * numel // CHUNK_BYTES)):
            for server, (start, stop) in enumerate(cut(*chunk, NUM_RANKS) if scheme == "alltoall" else [chunk]):
                paper = Paper(name, start, stop, clip, scheme == "alltoall")
                for step in range(NUM_STEPS):
                    want = paper.step(step)
                    clipped |= given_gradients(0, step)[name].flatten()[start:stop].norm().item() > CLIP / 2**0.5
                    for rank in range(NUM_RANKS):
                        result, (v, u, served), _ = traces[rank][step]
                        near(result[name].flatten()[start:stop], want)
                        near(v[name, start], paper.v[rank])
                        near(u[name, start], paper.u[rank])
                        if scheme == "alltoall" and rank == server:
                            near(served[name, start], paper.server)
    assert clipped
    for step in range(NUM_STEPS):
        assert bits(traces[0][step][0]) == bits(traces[1][step][0])


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_bytes_fall_in_the_warm_up():
    def payload(numel: int, step: int) -> int:
        nbytes = 8 * max(1, math.floor(ratio_of(step) * numel + 0.5))
        return -(-nbytes // 16) * 16

    plain = sum(4 * math.prod(shape) for name, shape in SHAPES.items() if name not in COMPRESSED)
    chunks = [c for name in COMPRESSED for n in [math.prod(SHAPES[name])] for c in cut(0, n, -(-4 * n // CHUNK_BYTES))]
    for steps in on_ranks(NUM_RANKS, trace, f"{SPEC})", "allgather"):
        for step, (_, _, sent_bytes) in enumerate(steps):
            assert abs(sent_bytes - plain - sum(payload(b - a, step) for a, b in chunks)) < 32


def run(rank: int, num_steps: int, settings: dict) -> dict:
    """The state of all ranks after some steps."""
    ddp = given_ddp()
    sync = attach(ddp, **settings)
    for step in range(num_steps):
        exchanged(ddp, given_gradients(rank, step))
    sync.detach()
    return sync.state_dict(all_ranks=True)


def resume(rank: int, state: dict, settings: dict) -> tuple[dict, dict[str, Tensor]]:
    """The state of all ranks after loading, and after one step more; and that step's result."""
    ddp = given_ddp()
    sync = attach(ddp, **settings)
    sync.load_state_dict(state)
    loaded = sync.state_dict(all_ranks=True)
    result = exchanged(ddp, given_gradients(rank, sync.step))
    stepped = sync.state_dict(all_ranks=True)
    sync.detach()
    return loaded, result, stepped


def total(state: dict, kind: str) -> dict[str, Tensor]:
    """By parameter: the mean over workers of errors or velocities, with the servers' errors, in unit 1."""
    sums: dict[str, Tensor] = {}
    for saved in state["ranks"]:
        for s in saved[kind]:
            x = s["error"] if kind == "errors" else s["tensors"]["velocity"]
            place = sums.setdefault(s["name"], torch.zeros(math.prod(SHAPES[s["name"]]), dtype=torch.float64))
            share = 1 if s.get("stage") else 1 / len(state["ranks"])
            place[s["start"] : s["start"] + len(x)] += share * x.double() / s["unit"]
    return sums


class Scaler:
    """A loss scale that stays."""

    def get_scale(self) -> float:
        return 8.0


ONE_WAY, TWO_WAY = ({"spec": f"{SPEC})", "scheme": scheme} for scheme in ("allgather", "alltoall"))
SCALED, OTHER_CHUNKS = ONE_WAY | {"scaler": Scaler()}, {"chunk_bytes": 1700}


@pytest.mark.parametrize(
    ("before", "after", "old_size", "new_size"),
    [
        (ONE_WAY, ONE_WAY, 2, 3),
        (TWO_WAY, TWO_WAY, 3, 2),
        (SCALED, SCALED, 3, 2),
        (SCALED, SCALED | OTHER_CHUNKS, 2, 2),
        (ONE_WAY, TWO_WAY | OTHER_CHUNKS, 2, 2),
        (ONE_WAY, ONE_WAY, 2, 1),
    ],
    ids=["more", "fewer", "scaled", "chunks", "two-way", "one"],
)
def test_velocities_survive_other_ranks_chunks_and_schemes(before, after, old_size, new_size):
    old = on_ranks(old_size, run, 3, before)[0]
    loaded, result, stepped = on_ranks(new_size, resume, old, after)[0]
    for kind in ("errors", "states"):
        want, got = total(old, kind), total(loaded, kind)
        assert got.keys() == want.keys() == set(COMPRESSED)
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=1e-6, atol=1e-6)
            assert want[name].any()
    unit = 8.0 if "scaler" in before else 1.0
    for name, u in total(old, "states").items():
        mean = torch.stack([given_gradients(rank, 3)[name].double() for rank in range(new_size)]).mean(0).flatten()
        sent, left = result[name].double().flatten() / unit, total(stepped, "errors")[name]
        entered = mean / unit + MOMENTUM * u + total(old, "errors")[name]
        torch.testing.assert_close(sent + left, entered, rtol=1e-5, atol=1e-5)


def test_state_of_another_compressor_is_refused():
    old = on_ranks(2, run, 2, ONE_WAY)[0]
    on_ranks(2, refuse, old)


def refuse(rank: int, state: dict) -> None:
    sync = attach(given_ddp(), "topk(ratio=0.05)")
    with pytest.raises(ValueError, match="is not one of the compressor that it has now; resume with"):
        sync.load_state_dict(state)
    assert sync.step == 0
    sync.detach()
