import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.kernels import dither_decode_sum, dither_encode, num_scales
from thinwire.kernels.reference import dither as reference

SIZES = [0, 1, 7, 8, 9, 13, 31, 33, 255, 256, 257, 1000, 1023, 1024, 1025, 4097]
KEY = (1 << 64) - 12345

every_grid = pytest.mark.parametrize("natural", [False, True], ids=["linear", "natural"])
every_width = pytest.mark.parametrize("bits", range(2, 9))


def vector(numel, seed=0, exponent=0):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).mul(3).exp()
    return torch.ldexp(wide, torch.tensor(exponent))


def encode(grad, bits, natural, block=0, error=None, key=KEY, **factors):
    numel = grad.numel()
    codes = torch.full((bits, (numel + 7) // 8), 0x5A, dtype=torch.uint8)
    scales, new_error = torch.full((num_scales(numel, block),), -1.0), torch.full((numel,), torch.nan)
    dither_encode(grad, error, new_error, codes, scales, key=key, natural=natural, block=block, **factors)
    return codes, scales, new_error


def decode(codes, scales, numel, natural, block=0):
    out = torch.full((numel,), torch.nan)
    dither_decode_sum(codes.unsqueeze(0), scales.unsqueeze(0), out, natural=natural, block=block)
    return out


def grid(bits, natural):
    """What the levels above zero stand for."""
    top = 2 ** (bits - 1) - 1
    levels = torch.arange(1, top + 1)
    return torch.ldexp(torch.ones(top), levels - top) if natural else levels / top


@every_grid
@every_width
@pytest.mark.parametrize("block", [0, 256, 1024])
@pytest.mark.parametrize("exponent", [-149, -130, 0, 100])
def test_cpu_gives_the_bits_of_the_reference(natural, bits, block, exponent):
    for numel in SIZES:
        grad, error = vector(numel, 0, exponent), vector(numel, 1, exponent)
        grad[numel // 2 : numel // 2 + 300] = error[numel // 2 : numel // 2 + 300] = 0
        codes, scales, new_error = encode(grad, bits, natural, block, error, error_scale=0.3, weight=0.25)
        rows = torch.full((3, codes.numel() + 13), 0x5A, dtype=torch.uint8)[:, : codes.numel()]
        rows = rows.copy_(codes.view(-1)).view(3, *codes.shape)
        row_scales, total = torch.stack([scales, 2 * scales, 3 * scales]), torch.full((numel,), torch.nan)
        dither_decode_sum(rows, row_scales, total, natural=natural, block=block)
        if numel:
            expected = [torch.empty_like(t) for t in (grad, codes, scales, total)]
            reference.encode(grad, error, *expected[:3], KEY, natural, False, 0.0, block or numel, 0.3, 0.25)
            reference.decode_sum(rows, row_scales, expected[3], natural, block or numel)
            for got, wanted in zip((new_error, codes, scales, total), expected, strict=True):
                assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


SCALES = {"norm": {"norm": True}, "clip": {"clip": 1.5}, "loose clip": {"clip": 1000.0}}


@every_grid
@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
@pytest.mark.parametrize("block", [0, 256])
def test_other_scales_equal_the_reference(natural, bits, scale, block):
    for numel in SIZES:
        for exponent in (-149, -100, 0, 100):
            grad, error = vector(numel, 0, exponent), vector(numel, 1, exponent)
            grad[numel // 2 : numel // 2 + 300] = error[numel // 2 : numel // 2 + 300] = 0
            got = encode(grad, bits, natural, block, error, error_scale=0.3, weight=0.25, **scale)
            if numel:
                expected = [torch.empty_like(t) for t in got]
                expected[2:], given = [], {"norm": False, "clip": 0.0} | scale
                new_error = torch.empty(numel)
                factors = (KEY, natural, given["norm"], given["clip"], block or numel, 0.3, 0.25)
                reference.encode(grad, error, new_error, *expected, *factors)
                for ours, wanted in zip(got, (*expected, new_error), strict=True):
                    assert torch.equal(ours.view(torch.uint8), wanted.view(torch.uint8))


@every_grid
@every_width
def test_scale_may_be_the_norm(natural, bits):
    x = vector(600)
    codes, scales, new_error = encode(x, bits, natural, 256, norm=True)
    torch.testing.assert_close(scales, torch.stack([part.double().norm().float() for part in x.split(256)]))
    sent = decode(codes, scales, 600, natural, 256)
    assert ((sent + new_error - x).abs() <= 1e-6 * sent.abs()).all()
    alone = torch.tensor([3e-45, -1e-30, 7.0, 1e38, torch.finfo(torch.float32).max])
    for element in alone:  # its own norm, to the bit
        codes, scales, _ = encode(element.view(1), bits, natural, norm=True)
        assert torch.equal(decode(codes, scales, 1, natural), element.view(1))


@every_grid
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_other_scales_of_a_non_finite_block_are_non_finite(natural, bad, scale):
    x = vector(600)
    x[300] = bad
    assert encode(x, 4, natural, 256, **scale)[1].isfinite().tolist() == [True, False, True]


def test_a_norm_beyond_the_range_is_infinite():
    assert encode(torch.full((4,), 3e38), 4, False, norm=True)[1].isinf().all()


@every_grid
@every_width
def test_clipped_elements_count_as_the_scale(natural, bits):
    x = torch.cat([torch.tensor([-80.0, 60.0]), torch.zeros(254), torch.full((256,), -3.0)])
    codes, scales, new_error = encode(x, bits, natural, 256, clip=2.0)
    limit = 2 * (x[:256].double().square().mean().sqrt().float())
    torch.testing.assert_close(scales, torch.stack([limit, torch.tensor(3.0)]))
    clipped = torch.cat([x[:256].clamp(-limit, limit), x[256:]])
    torch.testing.assert_close(decode(codes, scales, 512, natural, 256), clipped)
    torch.testing.assert_close(new_error, x - clipped, rtol=1e-6, atol=1e-6)


@every_grid
def test_codes_are_bitmaps(natural):
    # With two bits the levels are -1, 0 and 1 on either grid, and what lies on a level is not random.
    x = torch.tensor([1, -1, 0, 1, 0, 0, 0, -1, 1.0])  # codes 2 0 1 2 1 1 1 0 2
    codes, scales, new_error = encode(3 * x, 2, natural, weight=0.5)
    assert codes.tolist() == [[0b01110100, 0], [0b00001001, 1]]
    assert scales.tolist() == [1.5]
    assert torch.equal(new_error, torch.zeros(9))
    assert torch.equal(decode(codes, scales, 9, natural), 1.5 * x)


@every_grid
@every_width
def test_levels_are_kept_whatever_the_key(natural, bits):
    values = grid(bits, natural)
    x = torch.cat([values, -values, torch.zeros(3)])
    for key in range(10):
        codes, scales, new_error = encode(x, bits, natural, key=key)
        # 1 / top is rounded, so on the linear grid a level can come out in its neighbour within 2^-23 of the way
        torch.testing.assert_close(decode(codes, scales, x.numel(), natural), x, rtol=2e-7, atol=0)
        assert (new_error.abs() <= 2e-7 * x.abs()).all()


@every_grid
@every_width
def test_rounds_to_one_of_the_two_levels_around(natural, bits):
    x = vector(5000)
    decoded = decode(*encode(x, bits, natural)[:2], 5000, natural).double() / x.abs().max()
    levels = torch.cat([torch.zeros(1), grid(bits, natural)]).double()
    above = torch.searchsorted(levels, (x.abs() / x.abs().max()).double()).clamp(1)
    low, high = levels[above - 1], levels[above]
    magnitude = decoded.abs()
    assert (torch.minimum((magnitude - low).abs(), (magnitude - high).abs()) <= 2e-7).all()
    assert ((decoded == 0) | (decoded.sign() == x.sign())).all()


@every_grid
@settings(max_examples=60, deadline=None, derandomize=True)
@given(bits=st.integers(2, 8), part=st.floats(2**-20, 1, width=32), key=st.integers(0, 2**64 - 1))
def test_expectation_is_the_element_and_variance_is_bounded(natural, bits, part, key):
    numel = 1 << 14
    x = torch.full((numel,), part)
    x[0] = 1  # the peak
    decoded = decode(*encode(x, bits, natural, key=key)[:2], numel, natural)[1:].double()
    levels = torch.cat([torch.zeros(1), grid(bits, natural)]).double()
    above = int(torch.searchsorted(levels, torch.tensor(part).double()).clamp(1))
    low, high = float(levels[above - 1]), float(levels[above])
    variance = (high - part) * (part - low)  # of rounding to one of two levels without bias
    assert abs(decoded.mean() - part) <= 6 * (variance / numel) ** 0.5 + 2 * (high - low) / numel + 2e-7 * part
    if natural and low > 0:
        assert variance <= part**2 / 8 * (1 + 1e-6)  # Horváth et al., theorem 1
    spread = ((decoded - part) ** 2).mean()
    fourth = variance * ((high - part) ** 3 + (part - low) ** 3) / (high - low)
    assert abs(spread - variance) <= 6 * (fourth / numel) ** 0.5 + 4 * (high - low) ** 2 / numel


@every_grid
def test_keys_make_independent_noise(natural):
    x = torch.linspace(-1, 1, 1 << 14)
    noise = torch.stack([encode(x, 3, natural, key=key)[2].double() for key in (1, 2, 1 << 32, KEY)])
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert correlation.abs().max() < 5 / (1 << 7)


@every_grid
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_computed_in_float32(natural, source):
    x = vector(500).clamp(-1000, 1000).to(source)
    for got, expected in zip(encode(x, 4, natural, 256), encode(x.float(), 4, natural, 256), strict=True):
        assert torch.equal(got, expected)


@every_grid
def test_strided_input(natural):
    x, e = vector(1000), vector(1000, 1)
    strided = encode(x[::2], 4, natural, 256, e[::2])
    for got, expected in zip(strided, encode(x[::2].clone(), 4, natural, 256, e[::2].clone()), strict=True):
        assert torch.equal(got, expected)


@every_grid
@every_width
@pytest.mark.parametrize("peak", [2.0**-149, 2.0**-126, 1e-30, torch.finfo(torch.float32).max])
def test_the_peak_is_exact_at_any_scale(natural, bits, peak):
    x = torch.tensor([peak, -peak, 0.0, peak / 3])
    codes, scales, _ = encode(x, bits, natural)
    decoded = decode(codes, scales, 4, natural)
    assert torch.equal(decoded[:3], x[:3])
    assert decoded.isfinite().all()


@every_grid
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_non_finite_element_spoils_its_block_alone(natural, bad):
    x = vector(600)
    clean = encode(x, 4, natural, 256)
    x[300] = bad
    codes, scales, new_error = encode(x, 4, natural, 256)
    assert scales.isfinite().tolist() == [True, False, True]
    decoded = decode(codes, scales, 600, natural, 256)
    assert not decoded[256:512].isfinite().any()
    expected = decode(*clean[:2], 600, natural, 256)
    for part in (slice(0, 256), slice(512, 600)):
        assert torch.equal(decoded[part], expected[part])
        assert torch.equal(new_error[part], clean[2][part])


def test_arguments_are_checked():
    x, codes, scales = torch.zeros(600), torch.zeros(3, 75, dtype=torch.uint8), torch.zeros(3)
    with pytest.raises(ValueError, match="block is 200; it must be 0 or a multiple of 256"):
        dither_encode(x, None, None, codes, scales, key=0, natural=False, block=200)
    for clip in (-1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=f"clip is {clip}; it must be 0"):
            dither_encode(x, None, None, codes, scales, key=0, natural=False, clip=clip, block=256)
    with pytest.raises(ValueError, match=r"1 bitmaps; it must have 2 to 8"):
        dither_encode(x, None, None, codes[:1], scales, key=0, natural=False, block=256)
    with pytest.raises(ValueError, match=r"codes has shape \(3, 74\).*\(3, 75\)"):
        dither_encode(x, None, None, codes[:, :74], scales, key=0, natural=False, block=256)
    with pytest.raises(ValueError, match=r"scales has shape \(3,\).*\(1,\)"):
        dither_encode(x, None, None, codes, scales, key=0, natural=False)
    with pytest.raises(ValueError, match="error has shape"):
        dither_encode(x, x[:9], None, codes, scales, key=0, natural=False, block=256)
    with pytest.raises(ValueError, match="new_error has shape"):
        dither_encode(x, None, x[:9], codes, scales, key=0, natural=False, block=256)
    with pytest.raises(ValueError, match=r"scales has shape \(1, 3\).*\(2, 3\)"):
        dither_decode_sum(codes.expand(2, 3, 75), scales.expand(1, 3), x, natural=False, block=256)
