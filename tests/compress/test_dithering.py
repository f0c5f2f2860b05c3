import pytest
import torch

from tests.compress.laws import KEY, blank, decode, encode, vector
from thinwire.compress import Key, LinearDithering, NaturalDithering, parse

SIZES = [0, 1, 7, 8, 9, 13, 31, 33, 1000, 1023, 1024, 1025, 5000]

every_grid = pytest.mark.parametrize("cls", [LinearDithering, NaturalDithering])


@every_grid
@pytest.mark.parametrize("bits", range(2, 9))
def test_payload_is_bits_per_element_and_a_scale_per_block(cls, bits):
    for numel in SIZES:
        code_bytes = bits * -(-numel // 8)
        assert cls(bits=bits, block=256).payload_nbytes(numel) == 4 * -(-numel // 256) + code_bytes
        assert cls(bits=bits, block=0).payload_nbytes(numel) == 4 * min(numel, 1) + code_bytes


@every_grid
def test_ranks_use_different_noise(cls):
    x = vector(1000)
    payloads = [encode(cls(), x, Key(1, 2, 3, rank)) for rank in range(4)]
    noise = torch.stack([decode(cls(), p, 1000) for p in payloads]) - x
    assert (torch.corrcoef(noise) - torch.eye(4)).abs().max() < 5 / 1000**0.5
    assert torch.equal(payloads[0], encode(cls(), x, Key(1, 2, 3, 0)))


@every_grid
def test_steps_and_units_use_different_noise(cls):
    x = vector(1000)
    for other in (Key(1, 3, 3), Key(1, 2, 4), Key(2, 2, 3)):
        assert not torch.equal(encode(cls(), x, Key(1, 2, 3)), encode(cls(), x, other))


@every_grid
def test_the_mean_over_ranks_gets_better_with_ranks(cls):
    x = vector(4096)
    payloads = torch.stack([encode(cls(), x, Key(1, 2, 3, rank), weight=1 / 64) for rank in range(64)])
    one = 64 * decode(cls(), payloads[:1], 4096) - x
    mean = decode(cls(), payloads, 4096) - x
    assert mean.square().mean() < one.square().mean() / 64 * 1.2


@every_grid
def test_the_users_generator_is_left_alone(cls):
    before = torch.get_rng_state()
    encode(cls(), vector(1000))
    assert torch.equal(torch.get_rng_state(), before)


def test_linear_noise_is_at_most_a_level():
    x = vector(4096)
    for bits in range(2, 9):
        compressor = LinearDithering(bits=bits, block=0)
        error = decode(compressor, encode(compressor, x), 4096) - x
        assert error.abs().max() <= x.abs().max() / (2 ** (bits - 1) - 1) * (1 + 1e-6)


def test_natural_noise_is_relative():
    # Horváth et al.: rounding to powers of two adds a variance of at most x² / 8.
    x = vector(1 << 16)
    compressor = NaturalDithering(bits=6, block=0)
    error = decode(compressor, encode(compressor, x), x.numel()) - x
    assert error.square().sum() <= x.square().sum() / 8


@every_grid
def test_error_feedback_conserves_the_sum(cls):
    compressor, numel = cls(), 1000
    grad, error, applied = vector(numel), torch.zeros(numel), torch.zeros(numel, dtype=torch.float64)
    payload = blank(compressor, numel)
    for step in range(20):
        key = Key(1, step, 2)
        compressor.encode_with_error(grad, error, error, payload, key, weight=0.5)
        applied += 2 * decode(compressor, payload, numel, key)
    torch.testing.assert_close((applied + error).float(), 20 * grad, rtol=1e-5, atol=1e-4)


@every_grid
@pytest.mark.parametrize(
    ("settings", "message"),
    [(f"bits={b}", "bits is an integer from 2 to 8") for b in (1, 9, 4.0, "true", "nan")]
    + [(f"block={b}", "block is 0 .* or a positive multiple of 256") for b in (-256, 100, 256.0, "true")],
)
def test_settings_are_checked(cls, settings, message):
    with pytest.raises(ValueError, match=message):
        parse(f"{cls.id}({settings})")


@every_grid
def test_declared_facts(cls):
    assert cls().unbiased
    assert not cls().reducible
    assert cls().is_finite(encode(cls(), vector(100), KEY).unsqueeze(0))
