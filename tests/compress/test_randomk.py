import pytest
import torch

from tests.compress.laws import KEY, blank, decode, encode, vector
from thinwire.compress import Key, RandomK, parse, unit_hash


def places(compressor, numel, key):
    return decode(compressor, encode(compressor, torch.ones(numel), key), numel, key).nonzero().squeeze(1)


@pytest.mark.parametrize(("numel", "count"), [(1000, 100), (5, 1), (1, 1), (0, 0), (14, 1), (15, 2), (25, 3)])
@pytest.mark.parametrize("values", ["fp32", "fp16"])
def test_a_tenth_travels_rounded_half_up_and_at_least_one(numel, count, values):
    compressor = RandomK(ratio=0.1, values=values)
    assert compressor.num_values(numel) == count
    assert compressor.payload_nbytes(numel) == count * (4 if values == "fp32" else 2)
    assert places(compressor, numel, KEY).numel() == count


@pytest.mark.parametrize(("scaled", "mean"), [(False, 1.5), (True, 15.0)])
def test_two_ranks_share_places_and_their_payloads_add_up_to_the_mean(scaled, mean):
    compressor = RandomK(ratio=0.1, scaled=scaled)
    payloads = [encode(compressor, torch.full((1000,), rank + 1.0), Key(0, 1, 2, rank), weight=0.5) for rank in (0, 1)]
    for total in (
        decode(compressor, torch.stack(payloads), 1000, Key(0, 1, 2)),
        decode(compressor, sum(p.view(torch.float32) for p in payloads).view(torch.uint8), 1000, Key(0, 1, 2)),
    ):
        assert (total == mean).sum() == 100
        assert (total == 0).sum() == 900


def test_places_change_with_seed_step_and_unit_and_not_with_rank():
    compressor = RandomK(ratio=0.1)
    key = Key(seed=1, step=2, unit=unit_hash("a.weight"))
    drawn = places(compressor, 1000, key)
    assert torch.equal(drawn, places(compressor, 1000, Key(1, 2, key.unit, rank=7)))
    for other in (Key(2, 2, key.unit), Key(1, 3, key.unit), Key(1, 2, unit_hash("b.weight"))):
        assert not torch.equal(drawn, places(compressor, 1000, other))


def test_every_place_gets_its_turn():
    compressor = RandomK(ratio=0.1)
    drawn = torch.cat([places(compressor, 100, Key(1, step, 3)) for step in range(100)])
    assert drawn.unique().numel() == 100


def test_the_users_generator_is_left_alone():
    before = torch.get_rng_state()
    places(RandomK(), 1000, KEY)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("spec", ["randomk(ratio=0.1)", "randomk(ratio=0.1, values=fp16)"])
def test_error_feedback_delivers_everything_in_time(spec):
    compressor, numel, num_steps = parse(spec), 1000, 100
    grad, error, applied = vector(numel), torch.zeros(numel), torch.zeros(numel, dtype=torch.float64)
    payload = blank(compressor, numel)
    for step in range(num_steps):
        key = Key(1, step, 2)
        compressor.encode_with_error(grad, error, error, payload, key, weight=0.25)
        applied += 4 * decode(compressor, payload, numel, key)
    torch.testing.assert_close((applied + error).float(), num_steps * grad, rtol=1e-5, atol=1e-4)
    # An element waits 10 steps on average.
    assert (error.abs() / grad.abs()).mean() < 15


def test_gradients_below_the_range_of_fp16_add_up_until_they_are_in_it():
    compressor, error = RandomK(ratio=1.0, values="fp16"), torch.zeros(64)
    applied, payload = torch.zeros(64), blank(compressor, 64)
    for step in range(100):
        compressor.encode_with_error(torch.full((64,), 1e-8), error, error, payload, Key(0, step, 0))
        applied += decode(compressor, payload, 64, Key(0, step, 0))
    torch.testing.assert_close(applied, torch.full((64,), 1e-6), rtol=0.06, atol=0)  # fp16's step is 6e-8 here


def test_beyond_the_range_of_fp16_is_visible():
    compressor = RandomK(ratio=1.0, values="fp16")
    x = torch.tensor([1.0, 70016.0, 1.0])
    assert not compressor.is_finite(encode(compressor, x).unsqueeze(0))
    halved = encode(compressor, x, weight=0.5)
    assert decode(compressor, halved, 3).tolist() == [0.5, 35008.0, 0.5]


@pytest.mark.parametrize(
    ("spec", "message"),
    [(f"randomk(ratio={r})", "ratio is a number above 0 and at most 1") for r in ("0", "-1", "1.5", "nan", "inf", "a")]
    + [
        ("randomk(values=fp8)", "values is one of fp16, fp32, not 'fp8'"),
        ("randomk(scaled=1)", "scaled is true or false, not 1"),
        ("randomk(unbiased=true)", "unknown setting unbiased"),
    ],
)
def test_settings_are_checked(spec, message):
    with pytest.raises(ValueError, match=message):
        parse(spec)


def test_declared_facts():
    assert RandomK().sum_dtype == torch.float32
    assert RandomK(values="fp16").sum_dtype == torch.float16
    assert not RandomK().unbiased
    assert RandomK(scaled=True).unbiased
