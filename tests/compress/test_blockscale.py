import pytest
import torch

from tests.compress.laws import blank, decode, encode, vector
from thinwire.compress import Float8, Int8, Key, parse

every_format = pytest.mark.parametrize("cls", [Int8, Float8])


@every_format
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 13, 31, 33, 255, 256, 257, 1000, 1024])
def test_payload_is_a_byte_per_element_and_a_scale_per_block(cls, numel):
    assert cls().payload_nbytes(numel) == 4 * -(-numel // 256) + numel
    assert cls(block=0).payload_nbytes(numel) == 4 * min(numel, 1) + numel
    assert cls(block=1).payload_nbytes(numel) == 5 * numel


@every_format
@pytest.mark.parametrize("block", [0, 1, 3, 64, 1000])
def test_non_finite_scales_are_found_for_every_block_size(cls, block):
    compressor = cls(block=block)
    for numel in (1, 2, 63, 64, 65, 300):
        for bad in {0, numel // 2, numel - 1}:
            x = vector(numel)
            assert compressor.is_finite(encode(compressor, x).unsqueeze(0))
            x[bad] = torch.nan
            assert not compressor.is_finite(encode(compressor, x).unsqueeze(0))


@pytest.mark.parametrize("block", [0, 3, 4])
def test_codes_that_spell_nan_are_no_scales(block):
    x = torch.tensor([0.0, 0, -64, 127]).repeat(3)
    payload = encode(Int8(block=4), x)
    assert payload[12:].view(torch.float32).isnan().all()
    assert Int8(block=4).is_finite(payload.unsqueeze(0))
    assert Int8(block=block).is_finite(encode(Int8(block=block), x).unsqueeze(0))


@every_format
def test_no_randomness(cls):
    x = vector(1000)
    assert torch.equal(encode(cls(), x, Key(1, 2, 3, 4)), encode(cls(), x, Key(5, 6, 7, 8)))


def test_int8_is_within_half_a_step():
    x = vector(4096)
    peaks = x.view(-1, 256).abs().amax(1).repeat_interleave(256)
    error = decode(Int8(), encode(Int8(), x), 4096) - x
    assert (error.abs() <= peaks / 254 * (1 + 1e-5)).all()


def test_fp8_keeps_small_values():
    x = torch.tensor([1.0, 1e-3, -1e-4])
    decoded = decode(Float8(), encode(Float8(), x), 3)
    torch.testing.assert_close(decoded, x, rtol=1 / 16, atol=0)
    assert decode(Int8(), encode(Int8(), x), 3)[1:].tolist() == [0, 0]


@every_format
def test_blocks_do_not_disturb_each_other(cls):
    x = torch.cat([1e6 * vector(256), 1e-6 * vector(256, 1)])
    decoded = decode(cls(), encode(cls(), x), 512)
    for part in (slice(0, 256), slice(256, 512)):
        assert (decoded[part] - x[part]).norm() < 0.04 * x[part].norm()


@every_format
def test_error_feedback_conserves_the_sum(cls):
    compressor, numel = cls(), 1000
    grad, error, applied = vector(numel), torch.zeros(numel), torch.zeros(numel, dtype=torch.float64)
    payload = blank(compressor, numel)
    for step in range(20):
        compressor.encode_with_error(grad, error, error, payload, Key(0, step, 0), weight=0.5)
        applied += 2 * decode(compressor, payload, numel)
    torch.testing.assert_close((applied + error).float(), 20 * grad, rtol=1e-5, atol=1e-4)


@every_format
@pytest.mark.parametrize("block", [-1, 1.5, "true", "nan"])
def test_block_is_checked(cls, block):
    with pytest.raises(ValueError, match=r"block is 0 \(one scale in all\) or a positive integer, not"):
        parse(f"{cls.id}(block={block})")
