import pytest
import torch

from thinwire.kernels import blockscale_decode_sum, blockscale_encode, num_scales
from thinwire.kernels.reference import blockscale as reference

FORMATS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SIZES = [0, 1, 7, 8, 9, 13, 31, 33, 255, 256, 257, 1000, 1023, 1024, 1025, 4097]

every_format = pytest.mark.parametrize("dtype", FORMATS, ids=["int8", "fp8"])


def vector(numel, seed=0, exponent=0):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).mul(3).exp()
    return torch.ldexp(wide, torch.tensor(exponent))


def encode(grad, dtype, block=0, error=None, keep=True, **factors):
    codes = torch.full((grad.numel(),), 0x5A, dtype=torch.uint8).view(dtype)
    scales = torch.full((num_scales(grad.numel(), block),), -1.0)
    new_error = torch.full((grad.numel(),), torch.nan) if keep else None
    blockscale_encode(grad, error, new_error, codes, scales, block=block, **factors)
    return codes, scales, new_error


def decode(codes, scales, numel, block=0):
    """Of one payload, or of rows of them."""
    if codes.dim() == 1:
        codes, scales = codes.unsqueeze(0), scales.unsqueeze(0)
    out = torch.full((numel,), torch.nan)
    blockscale_decode_sum(codes, scales, out, block=block)
    return out


def raw(codes):
    return codes.view(torch.uint8)


@every_format
@pytest.mark.parametrize("block", [0, 8, 40, 256, 2048])
@pytest.mark.parametrize("exponent", [-149, -130, 0, 100])
def test_cpu_gives_the_bits_of_the_reference(dtype, block, exponent):
    for numel in SIZES:
        grad, error = vector(numel, 0, exponent), vector(numel, 1, exponent)
        grad[numel // 2 : numel // 2 + 50] = error[numel // 2 : numel // 2 + 50] = 0
        codes, scales, new_error = encode(grad, dtype, block, error, error_scale=0.3, weight=0.25)
        payloads = torch.zeros(3, numel + 13, dtype=torch.uint8)[:, :numel].copy_(raw(codes)).view(dtype)
        row_scales = torch.stack([scales, 2 * scales, 3 * scales])
        total = decode(payloads, row_scales, numel, block)
        if numel:
            expected = [torch.empty_like(t) for t in (grad, codes, scales, total)]
            reference.encode(grad, error, *expected[:3], block or numel, 0.3, 0.25)
            reference.decode_sum(payloads, row_scales, expected[3], block or numel)
            for got, wanted in zip((new_error, codes, scales, total), expected, strict=True):
                assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


@every_format
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_computed_in_float32(dtype, source):
    x = vector(500).clamp(-1000, 1000).to(source)
    for got, expected in zip(encode(x, dtype, 64), encode(x.float(), dtype, 64), strict=True):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@every_format
def test_strided_input(dtype):
    x, e = vector(1000), vector(1000, 1)
    strided = encode(x[::2], dtype, 64, e[::2])
    for got, expected in zip(strided, encode(x[::2].clone(), dtype, 64, e[::2].clone()), strict=True):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@every_format
def test_without_error_it_is_the_same_code(dtype):
    x = vector(1000)
    assert torch.equal(raw(encode(x, dtype, 64, keep=False)[0]), raw(encode(x, dtype, 64, torch.zeros(1000))[0]))


def test_int8_rounds_to_nearest_even():
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1.4999, 126.5, -127.0, -0.0])
    codes, scales, new_error = encode(x, torch.int8)
    assert codes.tolist() == [127, 0, 2, 2, 0, -2, 1, 126, -127, 0]
    assert scales.tolist() == [127]
    assert torch.equal(new_error, x - codes)


def test_fp8_codes_are_those_of_a_cast():
    # All codes' values, the midpoints between them, and what is just beside those.
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, between, between * (1 + 2**-20), between * (1 - 2**-20), torch.tensor([2.0**-140])])
    x = torch.cat([x, -x])
    codes, scales, new_error = encode(x, torch.float8_e4m3fn)
    assert scales.tolist() == [448]
    assert torch.equal(raw(codes), raw((x / 448 * 448).to(torch.float8_e4m3fn)))
    assert torch.equal(new_error, x - decode(codes, scales, x.numel()))


@every_format
def test_every_code_decodes_to_its_value(dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes != 0x7F) & (codes != 0xFF)] if dtype == torch.float8_e4m3fn else codes  # these are NaN
    top = FORMATS[dtype]
    decoded = decode(codes.view(dtype), torch.tensor([top]), codes.numel())
    torch.testing.assert_close(decoded, codes.view(dtype).float(), rtol=2**-23, atol=0)


@pytest.mark.parametrize("exponent", [-120, 0, 100])
def test_error_bounds(exponent):
    x = vector(4096, 0, exponent)
    peaks = x.view(-1, 64).abs().amax(1).repeat_interleave(64)
    assert (encode(x, torch.int8, 64)[2].abs() <= peaks / 253.9).all()
    _, _, new_error = encode(x, torch.float8_e4m3fn, 64)
    assert (new_error.abs() <= torch.maximum(x.abs() / 15.9, peaks / 448 * 2**-10 * 1.001)).all()


@every_format
@pytest.mark.parametrize("peak", [2.0**-149, 2.0**-126, 1e-30, torch.finfo(torch.float32).max])
def test_the_peak_itself_is_exact_at_any_scale(dtype, peak):
    x = torch.tensor([peak, -peak, 0.0, peak / 3])
    codes, scales, new_error = encode(x, dtype)
    decoded = decode(codes, scales, 4)
    assert torch.equal(decoded[:3], x[:3])
    assert decoded.isfinite().all()
    assert torch.equal(decoded + new_error, x)


@every_format
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_non_finite_element_spoils_its_block_alone(dtype, bad):
    x = vector(300)
    clean = encode(x, dtype, 100)
    x[150] = bad
    codes, scales, new_error = encode(x, dtype, 100)
    assert scales.isfinite().tolist() == [True, False, True]
    assert (raw(codes)[100:200] == 0).all()
    assert not decode(codes, scales, 300, 100)[100:200].isfinite().any()
    for part in (slice(0, 100), slice(200, 300)):
        assert torch.equal(raw(codes)[part], raw(clean[0])[part])
        assert torch.equal(new_error[part], clean[2][part])


@every_format
def test_zero_blocks(dtype):
    x = torch.cat([torch.zeros(64), torch.ones(64)])
    codes, scales, new_error = encode(x, dtype, 64)
    assert scales.tolist() == [0, 1]
    assert torch.equal(decode(codes, scales, 128, 64), x)
    assert torch.equal(new_error, torch.zeros(128))


def test_shapes_are_checked():
    x, codes, scales = torch.zeros(10), torch.zeros(10, dtype=torch.int8), torch.zeros(1)
    with pytest.raises(ValueError, match=r"codes has shape \(9,\)"):
        blockscale_encode(x, None, None, codes[:9], scales)
    with pytest.raises(ValueError, match=r"scales has shape \(1,\).*\(2,\)"):
        blockscale_encode(x, None, None, codes, scales, block=8)
    with pytest.raises(ValueError, match="error has shape"):
        blockscale_encode(x, x[:9], None, codes, scales)
    with pytest.raises(ValueError, match="new_error has shape"):
        blockscale_encode(x, None, x[:9], codes, scales)
    with pytest.raises(ValueError, match="codes has shape"):
        blockscale_decode_sum(codes[:9].unsqueeze(0), scales.unsqueeze(0), x)
