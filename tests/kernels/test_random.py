import pytest
import torch

from thinwire.kernels import uniform_
from thinwire.kernels.reference import random as reference

KEYS = [0, 1, 2, 1 << 32, (1 << 64) - 1, 0x0123456789ABCDEF]
NUMEL = 1 << 18


def uniform(numel, key, start=0):
    out = torch.full((numel,), torch.nan)
    uniform_(out, key, start=start)
    return out


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers published with Random123 for philox4x32 of 7 rounds
        ([0, 0, 0, 0], 0, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        ([0xFFFFFFFF] * 4, 0xFFFFFFFFFFFFFFFF, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A],
        ),
    ],
)
def test_reference_gives_the_known_answers(counter, key, words):
    assert [int(w) for w in reference.philox(tuple(torch.tensor(c) for c in counter), key)] == words


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("start", [0, 256, (1 << 32) - 256, 1 << 34, (1 << 62) - 256])
def test_both_implementations_give_the_same_bits(key, start):
    for numel in (0, 1, 63, 64, 65, 255, 256, 257, 1000):
        expected = torch.empty(numel)
        reference.uniform(expected, key, start)
        assert torch.equal(uniform(numel, key, start), expected)


def test_a_number_depends_on_its_index_alone():
    assert torch.equal(uniform(2048, 3)[512:], uniform(1536, 3, start=512))


def test_indices_beyond_32_bits_count():
    # Blocks hold 4 elements, so their number needs its high word from 2^34 on.
    assert not torch.equal(uniform(256, 3), uniform(256, 3, start=1 << 34))


@pytest.mark.parametrize("start", [-256, 1, 255])
def test_start_is_a_multiple_of_a_tile(start):
    with pytest.raises(ValueError, match=f"start is {start}; it must be a multiple of 256"):
        uniform_(torch.empty(8), 0, start=start)


# Five standard errors of what independent uniform numbers would show; everything is seeded.


@pytest.mark.parametrize("key", KEYS)
def test_mean_and_variance(key):
    u = uniform(NUMEL, key).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 1 / 2) < 5 * (1 / 12 / NUMEL) ** 0.5
    assert abs(u.var() - 1 / 12) < 5 * (1 / 180 / NUMEL) ** 0.5


@pytest.mark.parametrize("key", KEYS)
def test_numbers_of_one_key_are_uncorrelated(key):
    u = uniform(NUMEL, key).double() - 0.5
    for lag in (1, 2, 3, 4, 63, 64, 65, 128, 192, 255, 256, 1024):
        assert abs((u[lag:] * u[:-lag]).mean()) < 5 / 12 / (NUMEL - lag) ** 0.5


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("change", [1, 2, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_neighbouring_keys_are_uncorrelated(key, change):
    a, b = uniform(NUMEL, key).double() - 0.5, uniform(NUMEL, key ^ change).double() - 0.5
    for lag in (0, 1, 64):
        assert abs((a[lag:] * b[: NUMEL - lag]).mean()) < 5 / 12 / (NUMEL - lag) ** 0.5


@pytest.mark.parametrize("key", KEYS)
def test_every_bit_is_balanced(key):
    bits = reference.random_bits(NUMEL, key, 0, torch.device("cpu"))
    ones = torch.stack([(bits >> i & 1).sum() for i in range(32)])
    assert ((ones - NUMEL / 2).abs() < 5 * (NUMEL / 4) ** 0.5).all()


@pytest.mark.parametrize("key", KEYS)
def test_values_are_evenly_spread(key):
    counts = torch.histc(uniform(NUMEL, key), bins=256, min=0, max=1).double()
    chi_square = ((counts - NUMEL / 256) ** 2 / (NUMEL / 256)).sum()
    assert abs(chi_square - 255) < 5 * (2 * 255) ** 0.5
