import pytest
import torch

from tests.compress.laws import KEY, decode, encode, vector
from thinwire.compress import OneBit, parse


def test_four_elements_by_hand():
    grad, error, new_error = torch.tensor([0.0, 0.0, 0.0, 5.0]), torch.zeros(4), torch.empty(4)
    payload = torch.empty(5, dtype=torch.uint8)
    OneBit().encode_with_error(grad, error, new_error, payload, KEY)
    assert decode(OneBit(), payload, 4).tolist() == [1.25] * 4
    assert new_error.tolist() == [-1.25, -1.25, -1.25, 3.75]


@pytest.mark.parametrize(
    ("block", "numel", "nbytes"),
    [(0, 0, 0), (0, 1, 5), (0, 8, 5), (0, 9, 6), (8, 0, 0), (8, 8, 5), (8, 9, 10), (64, 1000, 16 * 4 + 125)],
)
def test_payload_is_scales_then_signs(block, numel, nbytes):
    assert OneBit(block=block).payload_nbytes(numel) == nbytes


def test_size_of_a_payload_of_billions_of_elements():
    assert OneBit().payload_nbytes(3 * 10**9) == 4 + 375_000_000


def test_negative_zero_counts_as_zero():
    assert encode(OneBit(), torch.tensor([-0.0, -2.0]))[4:].tolist() == [0b10]


def test_what_the_format_can_say_is_exact():
    x = torch.cat([vector(64).sign() * 0.5, vector(64, 1).sign() * 8])
    assert torch.equal(decode(OneBit(block=64), encode(OneBit(block=64), x), 128), x)


def test_each_block_has_its_scale():
    x = torch.cat([torch.full((8,), 1.0), torch.full((8,), -3.0), torch.full((2,), 7.0)])
    assert torch.equal(decode(OneBit(block=8), encode(OneBit(block=8), x), 18), x)


@pytest.mark.parametrize("numel", [1, 8, 63, 64, 65, 127, 128, 129, 1000])
@pytest.mark.parametrize("block", [0, 8, 64])
def test_every_scale_is_looked_at(numel, block):
    compressor = OneBit(block=block)
    for place in range(0, numel, block or numel):
        x = vector(numel)
        x[place] = float("inf")
        assert not compressor.is_finite(encode(compressor, x).unsqueeze(0))


def test_huge_finite_elements_are_finite():
    x = torch.full((100,), 3e38)
    payload = encode(OneBit(), x)
    assert OneBit().is_finite(payload.unsqueeze(0))
    assert torch.equal(decode(OneBit(), payload, 100), x)


@pytest.mark.parametrize("block", [-8, 3, 8.0, True, "all", float("nan")])
def test_wrong_block_is_refused(block):
    with pytest.raises(ValueError, match=r"block .* multiple of 8, not "):
        OneBit(block=block)
    with pytest.raises(ValueError, match="block"):
        parse("onebit(block=3)")
