"""Deep Gradient Compression's codec: a top-k with a memory of its own."""

import math

import pytest
import torch

from tests.compress.laws import KEY, vector
from thinwire.compress import DGC, Codec, ErrorFeedback, TopK, parse

NUMEL = 200
INF, NAN = float("inf"), float("nan")


class Worker:
    """One region on one worker: its error memory and its velocity."""

    def __init__(self, method: DGC, numel: int = NUMEL) -> None:
        self.method, self.feedback, self.state = method, ErrorFeedback(numel), method.new_state((numel,), KEY)

    def step(self, grad, step=0, *, commit=True, weight=1.0, unit=1.0):
        """What is sent, per unit of weight."""
        codec = self.method.codec(self.method.phase(step), self.state)
        payload = torch.full((codec.payload_nbytes(grad.numel()),), 0xA5, dtype=torch.uint8)
        self.feedback.encode(codec, grad, payload, KEY, weight=weight, unit=unit)
        if commit:
            self.feedback.commit()
            self.state.commit()
        else:
            self.feedback.rollback()
            self.state.rollback()
        self.is_finite = codec.is_finite(payload.unsqueeze(0))
        sent = torch.empty(grad.numel())
        codec.decode(payload.unsqueeze(0), sent, KEY)
        return sent / weight

    @property
    def kept(self):
        """Copies of what is remembered: v, u."""
        return self.feedback.error.clone(), self.state.save()["velocity"].clone()


def test_by_hand():
    worker = Worker(DGC(ratio=0.25, momentum=0.5, values="fp32"), 4)
    assert worker.step(torch.tensor([4.0, 3, 2, 1])).tolist() == [4, 0, 0, 0]
    assert [x.tolist() for x in worker.kept] == [[0, 3, 2, 1], [0, 3, 2, 1]]
    # u = [1, 2.5, 2, 1.5], v = [1, 5.5, 4, 2.5]
    assert worker.step(torch.tensor([1.0, 1, 1, 1])).tolist() == [0, 5.5, 0, 0]
    assert [x.tolist() for x in worker.kept] == [[1, 0, 4, 2.5], [1, 0, 2, 1.5]]


def test_everything_is_sent_with_its_momentum():
    """What is never sent early gets exactly what SGD with momentum would have applied."""
    worker, velocity, applied = Worker(DGC(ratio=0.005, momentum=0.9, values="fp32")), 0.0, 0.0
    grad = torch.cat([torch.tensor([1000.0]), torch.full((NUMEL - 1,), 1.0)])
    for _ in range(5):
        assert worker.step(grad)[1:].eq(0).all()
        velocity = 0.9 * velocity + 1.0
        applied += velocity
    v, u = worker.kept
    torch.testing.assert_close(v[1:], torch.full((NUMEL - 1,), applied))
    torch.testing.assert_close(u[1:], torch.full((NUMEL - 1,), velocity))
    assert (v[0], u[0]) == (0, 0)


@pytest.mark.parametrize("values", ["fp16", "fp32"])
def test_nothing_of_the_velocity_is_lost(values):
    worker = Worker(DGC(ratio=0.05, values=values))
    for seed in range(10):
        grad = vector(NUMEL, seed)
        old_v, old_u = worker.kept
        sent = worker.step(grad, weight=0.25)
        v, u = worker.kept
        moved = 0.9 * old_u.double() + grad.double()
        torch.testing.assert_close(sent.double() + v.double(), old_v.double() + moved, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(u.double(), torch.where(sent != 0, 0.0, moved), rtol=1e-5, atol=1e-5)


def test_without_momentum_it_is_topk():
    worker, topk, feedback = Worker(DGC(ratio=0.05, momentum=0)), TopK(ratio=0.05), ErrorFeedback(NUMEL)
    for seed in range(5):
        payload, plain = torch.empty(topk.payload_nbytes(NUMEL), dtype=torch.uint8), torch.empty(NUMEL)
        feedback.encode(topk, vector(NUMEL, seed), payload, KEY)
        feedback.commit()
        topk.decode(payload.unsqueeze(0), plain, KEY)
        assert torch.equal(worker.step(vector(NUMEL, seed)), plain)
    assert torch.equal(worker.kept[0], feedback.error)


def test_a_step_that_is_taken_back_leaves_no_trace():
    worker = Worker(DGC(ratio=0.05))
    worker.step(vector(NUMEL))
    before = worker.kept
    for bad in (INF, -INF, NAN):
        grad = vector(NUMEL, 1)
        grad[7] = bad
        for clip in (0, 1):
            worker.method = DGC(ratio=0.05, clip=clip)
            assert not worker.step(grad, commit=False).isfinite().all()
            assert not worker.is_finite
    worker.state.commit()
    assert all(torch.equal(a, b) for a, b in zip(worker.kept, before, strict=True))


def test_a_zero_gradient_sends_nothing_and_changes_nothing():
    worker = Worker(DGC(ratio=0.05))
    worker.step(vector(NUMEL))
    before = worker.kept
    assert not worker.step(torch.zeros(NUMEL), unit=4.0).any()
    assert all(torch.equal(a, b) for a, b in zip(worker.kept, before, strict=True))


def test_velocity_follows_the_unit_of_the_error():
    plain, scaled = Worker(DGC(ratio=0.05, values="fp32")), Worker(DGC(ratio=0.05, values="fp32"))
    for step, unit in enumerate((1.0, 1024.0, 512.0)):
        grad = vector(NUMEL, step)
        assert torch.equal(scaled.step(unit * grad, unit=unit), unit * plain.step(grad))


def test_clipping_is_of_the_regions_norm_and_by_the_number_of_workers():
    grad = vector(NUMEL)
    norm, worker = grad.double().norm().item(), Worker(DGC(ratio=1, values="fp32", clip=1))
    torch.testing.assert_close(worker.step(grad, weight=1 / 4), grad / (2 * norm))  # four workers
    worker = Worker(DGC(ratio=1, values="fp32", clip=2.01 * norm))
    assert torch.equal(worker.step(grad, weight=1 / 4), grad)
    huge = torch.full((NUMEL,), 1e38)  # its norm is no float32
    worker = Worker(DGC(ratio=1, values="fp32", clip=1))
    torch.testing.assert_close(worker.step(huge), torch.full((NUMEL,), NUMEL**-0.5))


def test_warm_up():
    method = DGC(ratio=0.001, warmup_steps=8)

    def num_sent(step: int) -> int:
        codec: Codec = method.codec(method.phase(step), None)
        return codec.payload_nbytes(100_000) // 6

    assert [num_sent(step) for step in range(10)] == [25_000] * 2 + [6250] * 2 + [1563] * 2 + [400] * 2 + [100] * 2
    assert method.average_nbytes((100, 1000)) == 600
    assert {DGC().phase(step) for step in range(3)} == {4}
    assert [DGC(warmup_steps=2).phase(step) for step in range(4)] == [0, 2, 4, 4]
    strong = DGC(ratio=0.05, warmup_steps=4)  # never less than the ratio
    sizes = [strong.codec(strong.phase(step), None).payload_nbytes(1000) // 6 for step in range(5)]
    assert sizes == [250, 63, 50, 50, 50]


def test_a_server_compresses_by_topk():
    assert DGC(ratio=0.05).codec(4, None) == TopK(ratio=0.05)


def test_saved_velocity_is_loaded_as_a_copy():
    worker = Worker(DGC(ratio=0.05))
    worker.step(vector(NUMEL))
    saved, other = worker.state.save(), Worker(DGC(ratio=0.05))
    other.state.load(saved)
    worker.state.save()["velocity"].zero_()
    assert other.kept[1].any()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ratio=0", "ratio is a number above 0 and at most 1, not 0"),
        ("values=int8", "values is one of fp16, fp32, not 'int8'"),
        ("momentum=1", "momentum is a finite number from 0 and below 1, not 1"),
        ("momentum=nan", "momentum is a finite number from 0 and below 1, not nan"),
        ("momentum=true", "momentum is a finite number from 0 and below 1, not True"),
        ("clip=-1", r"clip is a finite number from 0 \(off\), not -1"),
        ("clip=inf", r"clip is a finite number from 0 \(off\), not inf"),
        ("warmup_steps=-1", "warmup_steps is a whole number from 0, not -1"),
        ("warmup_steps=1.5", "warmup_steps is a whole number from 0, not 1.5"),
    ],
)
def test_wrong_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        parse(f"dgc({setting})")


def test_spec():
    assert str(parse("dgc(momentum=0, clip=1)")) == "dgc(momentum=0.0, clip=1.0)"
    assert parse("dgc").average_nbytes((1024, 1024)) == math.floor(1024 * 1024 * 0.001 + 0.5) * 6
