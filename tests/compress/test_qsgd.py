import pytest
import torch

from tests.compress.laws import decode, encode, vector
from thinwire.compress import QSGD, Key, LinearDithering, parse


@pytest.mark.parametrize("bits", range(2, 9))
def test_payload_is_that_of_linear_dithering(bits):
    for numel in (0, 1, 7, 8, 9, 511, 512, 513, 5000):
        for block in (0, 256, 512):
            nbytes = LinearDithering(bits=bits, block=block).payload_nbytes(numel)
            assert QSGD(bits=bits, block=block).payload_nbytes(numel) == nbytes


def test_levels_are_parts_of_the_norm():
    x = vector(1000)
    decoded = decode(QSGD(), encode(QSGD(), x), 1000)
    for part, original in zip(decoded.split(512), x.split(512), strict=True):
        levels = part / (original.norm() / 7)
        torch.testing.assert_close(levels, levels.round(), rtol=1e-5, atol=1e-5)
        assert levels.abs().max() >= 1


@pytest.mark.parametrize(("bits", "block"), [(2, 512), (4, 512), (6, 512), (8, 512), (4, 0), (8, 1024)])
def test_noise_is_within_the_bound_of_the_paper(bits, block):
    numel = 4096
    compressor, levels, count = QSGD(bits=bits, block=block), 2 ** (bits - 1) - 1, block or numel
    for x in (vector(numel), vector(numel) ** 5, torch.ones(numel)):
        keys = [Key(1, step, 2) for step in range(20)]
        noise = torch.stack([decode(compressor, encode(compressor, x, key), numel, key) - x for key in keys])
        bound = min(count / levels**2, count**0.5 / levels) * x.square().sum()
        assert noise.square().sum(1).mean() <= 1.05 * bound


def test_declared_facts():
    assert QSGD().unbiased
    assert not QSGD().keeps_errors
    assert not QSGD().reducible
    assert [QSGD(bits=bits).expands for bits in range(2, 9)] == [True] * 4 + [False] * 3
    assert QSGD(bits=8, block=0).expands
    assert str(QSGD()) == "qsgd"


@pytest.mark.parametrize(
    ("settings", "message"),
    [(f"bits={b}", "bits is an integer from 2 to 8") for b in (1, 9, 4.0, "true", "nan")]
    + [(f"block={b}", "block is 0 .* or a positive multiple of 256") for b in (-256, 100, 512.0, "true")],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        parse(f"qsgd({settings})")
