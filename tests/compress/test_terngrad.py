import pytest
import torch

from tests.compress.laws import decode, encode, vector
from thinwire.compress import Key, LinearDithering, TernGrad, parse


def test_three_values():
    x = vector(1000)
    peak = x.abs().max().item()
    assert set(decode(TernGrad(clip=0), encode(TernGrad(clip=0), x), 1000).tolist()) == {0.0, peak, -peak}
    limit = 2.5 * x.square().mean().sqrt()
    clipped = decode(TernGrad(), encode(TernGrad(), x), 1000)
    assert peak > clipped.max() == -clipped.min()
    assert clipped.max() == pytest.approx(limit.item())


def test_without_clipping_it_is_linear_dithering_with_two_bits():
    for block in (0, 256):
        x = vector(1000)
        payload = encode(TernGrad(clip=0, block=block), x, weight=0.25)
        assert torch.equal(payload, encode(LinearDithering(bits=2, block=block), x, weight=0.25))


@pytest.mark.parametrize("block", [0, 256])
@pytest.mark.parametrize("clip", [1, 2.5])
def test_the_clipped_vector_is_met_on_average(clip, block):
    x = vector(300) ** 3
    limits = [clip * part.square().mean().sqrt() for part in x.split(block or 300)]
    clipped = torch.cat([part.clamp(-m, m) for part, m in zip(x.split(block or 300), limits, strict=True)])
    assert not torch.equal(clipped, x)
    compressor, keys = TernGrad(clip=clip, block=block), [Key(11, step, 13) for step in range(3000)]
    mean = sum(decode(compressor, encode(compressor, x, key), 300, key).double() for key in keys) / 3000
    magnitude, largest = clipped.abs(), max(limits)
    standard_error = (magnitude * (largest - magnitude) / 3000).sqrt()
    assert ((mean - clipped).abs() <= 5 * standard_error + 1e-3 * largest).all()


def test_clipping_bounds_the_noise():
    x = vector(4096)
    x[7] = 100
    noise = [(decode(c, encode(c, x), 4096) - x)[8:].square().sum() for c in (TernGrad(), TernGrad(clip=0))]
    assert noise[0] < noise[1] / 3


def test_equal_elements_and_single_ones_are_not_clipped():
    for x in (torch.full((1000,), -3.0), torch.tensor([1e-40]), torch.tensor([3e38, 3e38])):
        torch.testing.assert_close(decode(TernGrad(), encode(TernGrad(), x), x.numel()), x, rtol=1e-6, atol=0)


def test_declared_facts():
    assert TernGrad(clip=0).unbiased
    assert not TernGrad().unbiased
    for compressor in (TernGrad(), TernGrad(clip=0)):
        assert compressor.expands
        assert not compressor.keeps_errors
        assert not compressor.reducible
    assert TernGrad(clip=0) == TernGrad(clip=0.0)
    assert [TernGrad().payload_nbytes(numel) for numel in (0, 1, 8, 9, 1000)] == [0, 6, 6, 8, 254]
    assert TernGrad(block=256).payload_nbytes(1000) == 16 + 250


@pytest.mark.parametrize("numel", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize("block", [0, 256])
def test_every_scale_is_looked_at(numel, block):
    compressor = TernGrad(block=block)
    for place in range(0, numel, 256):
        x = vector(numel)
        assert compressor.is_finite(encode(compressor, x).unsqueeze(0))
        x[place] = float("inf")
        assert not compressor.is_finite(encode(compressor, x).unsqueeze(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [(f"clip={c}", r"clip is 0 \(off\) or a finite number from 1, not") for c in (-1, 0.5, "nan", "inf", "true", "a")]
    + [(f"block={b}", "block is 0 .* or a positive multiple of 256") for b in (-256, 100, 256.0, "true")],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        parse(f"terngrad({settings})")
