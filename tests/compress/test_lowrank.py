"""The laws of compressors (see test_laws) for low rank: a codec is made for one matrix, and keeps its factors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.compress import Codec, Key, Method, TwoRoundCodec, parse

METHODS = [
    "acpsgd",
    "acpsgd(approx_rank=1)",
    "acpsgd(approx_rank=3, warm_start=False)",
    "powersgd",
    "powersgd(approx_rank=2)",
]
SHAPES = [(64, 64), (64, 27), (9, 31), (31, 33), (7, 129), (16, 8, 3, 3), (65, 63)]
EPS = torch.finfo(torch.float32).eps

every = pytest.mark.parametrize("method", [parse(spec) for spec in METHODS], ids=METHODS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_phase = pytest.mark.parametrize("phase", [0, 1])


def key(step: int = 2, rank: int = 3) -> Key:
    return Key(seed=1, step=step, unit=7, rank=rank)


def vector(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(math.prod(shape), generator=torch.Generator().manual_seed(seed))


class Channel:
    """One matrix on one worker: both rounds, where there are two."""

    def __init__(self, method: Method, shape: tuple[int, ...], phase: int = 0) -> None:
        self.state = method.new_state(shape, key())
        self.codec = method.codec(phase, self.state)
        self.numel = math.prod(shape)

    def encode(self, grad: Tensor, error: Tensor | None = None, **settings: float) -> tuple[Tensor, Tensor]:
        """The payload that decodes, and the new error."""
        error, new_error = torch.zeros(self.numel) if error is None else error, torch.empty(self.numel)
        codec: Codec = self.codec
        payload = self.payload(codec, grad, error, new_error, settings)
        if isinstance(codec, TwoRoundCodec):
            codec.absorb(payload)
            payload = self.payload(codec.second, grad, error, new_error, settings)
        return payload, new_error

    def payload(self, codec: Codec, grad: Tensor, error: Tensor, new_error: Tensor, settings: dict) -> Tensor:
        payload = torch.full((codec.payload_nbytes(self.numel),), 0xA5, dtype=torch.uint8)
        codec.encode_with_error(grad, error, new_error, payload, key(), **settings)
        return payload

    @property
    def last(self) -> Codec:
        return self.codec.second if isinstance(self.codec, TwoRoundCodec) else self.codec

    def decode(self, *payloads: Tensor) -> Tensor:
        out = torch.full((self.numel,), float("nan"))
        self.last.decode(torch.stack(payloads), out, key())
        return out


@every
@every_shape
@every_phase
@pytest.mark.parametrize(("weight", "error_scale"), [(1.0, 1.0), (0.25, 1.0), (1 / 3, 0.7)])
def test_nothing_is_lost(method, shape, phase, weight, error_scale):
    channel, grad, error = Channel(method, shape, phase), vector(shape), vector(shape, 1)
    payload, new_error = channel.encode(grad, error, weight=weight, error_scale=error_scale)
    entered = grad.double() + error_scale * error.double()
    sent = channel.decode(payload).double() / weight
    torch.testing.assert_close(sent + new_error.double(), entered, rtol=1e-5, atol=1e-5)
    # What is left is orthogonal to what is sent, so it is no larger than what entered.
    assert new_error.double().square().sum() <= entered.square().sum() * (1 + 1e-6)
    assert abs(sent.dot(new_error.double())) <= 1e-5 * entered.square().sum()


@every
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_nothing_is_lost_of_any_matrix(method, data):
    shape = data.draw(st.tuples(st.integers(9, 40), st.integers(9, 40)))
    scale = 10.0 ** data.draw(st.integers(-18, 15))
    kind = data.draw(st.sampled_from(["normal", "one direction", "one element", "constant"]))
    grad = vector(shape, data.draw(st.integers(0, 1 << 20)))
    if kind == "one direction":
        grad = torch.outer(grad[: shape[0]], grad[: shape[1]]).flatten()
    elif kind != "normal":
        grad = torch.full_like(grad, 1.0) if kind == "constant" else torch.eye(1, grad.numel()).flatten()
    channel = Channel(method, shape)
    payload, new_error = channel.encode(scale * grad)
    assert channel.last.is_finite(payload.unsqueeze(0))
    error = (channel.decode(payload) + new_error - scale * grad).abs().max()
    assert error <= 2e-6 * scale * grad.norm() + 1e-37


@every
@every_shape
@every_phase
def test_payloads_add_up(method, shape, phase):
    channel = Channel(method, shape, phase)
    a, _ = channel.encode(vector(shape), weight=0.5)
    if isinstance(channel.codec, TwoRoundCodec):  # both workers look in the direction that their sum has given
        b = channel.payload(channel.last, vector(shape, 1), torch.zeros(channel.numel), torch.empty(channel.numel), {})
    else:
        b, _ = channel.encode(vector(shape, 1))
    summed = (a.view(torch.float32) + b.view(torch.float32)).view(torch.uint8)
    assert torch.equal(channel.decode(a, b), channel.decode(summed))
    torch.testing.assert_close(channel.decode(a) + channel.decode(b), channel.decode(summed), rtol=1e-5, atol=1e-5)


@every
@every_phase
def test_same_bits_again(method, phase):
    results = []
    for _ in range(2):
        channel = Channel(method, (31, 33), phase)
        payload, new_error = channel.encode(vector((31, 33)))
        results.append((payload, new_error, channel.decode(payload)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@every
@every_shape
@every_phase
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_non_finite_input_stays_visible(method, shape, phase, bad):
    for place in (0, math.prod(shape) // 2, -1):
        x = vector(shape)
        x[place] = bad
        for grad, error in ((x, vector(shape, 1)), (vector(shape, 1), x)):
            channel = Channel(method, shape, phase)
            payload, _ = channel.encode(grad, error)
            assert not channel.last.is_finite(payload.unsqueeze(0))
            assert not channel.decode(payload).isfinite().all()
            channel.state.rollback()
            assert all(factor.isfinite().all() for factor in channel.state.save().values())


@every
@every_shape
def test_zero_decodes_to_zero_and_keeps_the_factors(method, shape):
    channel = Channel(method, shape)
    before = {name: factor.clone() for name, factor in channel.state.save().items()}
    payload, new_error = channel.encode(torch.zeros(channel.numel))
    assert not channel.decode(payload).any()
    assert not new_error.any()
    channel.state.commit()
    assert all(torch.equal(factor, before[name]) for name, factor in channel.state.save().items())


@pytest.mark.parametrize("spec", ["acpsgd(approx_rank=4)", "powersgd(approx_rank=4)"])
def test_what_is_compressed(spec):  # C12
    method = parse(spec)
    assert method.fits((64, 64))
    assert method.fits((64, 27))
    assert method.fits((64, 3, 3, 3))
    for shape in [(2, 100), (3, 3), (64,), (), (0, 5), (5, 0)]:
        assert not method.fits(shape)
    assert method.average_nbytes((64, 27)) == 4 * 4 * 91 / (2 if method.id == "acpsgd" else 1)


@pytest.mark.parametrize("spec", ["acpsgd(approx_rank=3)", "powersgd(approx_rank=3)"])
def test_a_matrix_of_low_rank_gets_through_whole(spec):
    shape, method = (40, 30), parse(spec)
    state = method.new_state(shape, key())
    x = (vector((40, 3)).view(40, 3) @ vector((3, 30), 1).view(3, 30)).flatten()
    error = torch.zeros(1200)
    for step in range(4):
        channel = Channel(method, shape)
        channel.state, channel.codec = state, method.codec(method.phase(step), state)
        payload, _ = channel.encode(x, error)
        result = channel.decode(payload)
        state.commit()
    torch.testing.assert_close(result, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("method", ["acpsgd", "powersgd"])
def test_a_matrix_of_rank_one_is_recovered(method, scale):  # C16
    channel = Channel(parse(method), (64, 32))
    x = scale * torch.outer(vector((64,)), vector((32,), 1)).flatten()
    error = torch.zeros(64 * 32)
    for phase in (0, 1, 0):
        channel.codec = parse(method).codec(phase, channel.state)
        payload, _ = channel.encode(x, error)
        result = channel.decode(payload)
        channel.state.commit()
    assert (result.double() - x.double()).norm() <= 1e-5 * x.double().norm()


@pytest.mark.parametrize("warm_start", [True, False])
def test_factors_are_kept_only_once_committed(warm_start):
    method = parse(f"acpsgd(warm_start={warm_start})")
    channel = Channel(method, (20, 30))
    before = {name: factor.clone() for name, factor in channel.state.save().items()}
    channel.decode(channel.encode(vector((20, 30)))[0])
    channel.state.rollback()
    channel.state.commit()
    assert all(torch.equal(factor, before[name]) for name, factor in channel.state.save().items())
    channel.decode(channel.encode(vector((20, 30)))[0])
    channel.state.commit()
    assert not torch.equal(channel.state.save()["left"], before["left"])
    assert torch.equal(channel.state.save()["right"], before["right"])


@pytest.mark.parametrize(
    "setting", ["approx_rank=0", "approx_rank=-1", "approx_rank=1.5", "approx_rank=true", "warm_start=1"]
)
def test_wrong_settings(setting):
    for method in ("acpsgd", "powersgd"):
        with pytest.raises(ValueError, match=r"approx_rank is a whole number from 1|warm_start is true or false"):
            parse(f"{method}({setting})")
