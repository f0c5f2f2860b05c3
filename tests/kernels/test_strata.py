import pytest
import torch

from thinwire.kernels import strata_put_, strata_take
from thinwire.kernels.reference import strata as reference

CPU = torch.device("cpu")
CASES = [(1, 1), (7, 3), (8, 8), (31, 1), (255, 8), (257, 256), (1000, 100), (5000, 257), (5000, 1300), (100003, 3125)]

every_case = pytest.mark.parametrize(("numel", "num_places"), CASES)


def vector(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def take(grad, num_places, key, error=None, new_error=None, **factors):
    values = torch.full((num_places,), -7.0)
    strata_take(grad, error, new_error, values, key=key, **factors)
    return values


def places(numel, num_places, key):
    out = torch.zeros(numel)
    strata_put_(out, torch.ones(1, num_places), key=key)
    return out.nonzero().squeeze(1)


@every_case
def test_cpu_gives_the_bits_of_the_reference(numel, num_places):
    grad, error, key = vector(numel), vector(numel, 1), (1 << 64) - 5
    new_error, kept, values = torch.empty(numel), torch.empty(numel), torch.empty(num_places)
    got = take(grad, num_places, key, error, new_error, error_scale=0.3, weight=0.7)
    reference.take(grad, error, kept, values, key, 0.3, 0.7)
    assert torch.equal(got, values)
    assert torch.equal(new_error, kept)
    assert torch.equal(take(grad, num_places, key, error, error_scale=0.3, weight=0.7), values)

    rows = torch.randn(3, num_places + 5, generator=torch.Generator().manual_seed(2))[:, :num_places]
    for scaled in (False, True):
        for clear in (False, True):
            out, expected = vector(numel, 3), vector(numel, 3)
            strata_put_(out, rows, key=key, scaled=scaled, clear=clear)
            reference.put(expected, rows, key, scaled, clear)
            assert torch.equal(out, expected)


@every_case
def test_one_place_in_every_stratum(numel, num_places):
    edges = torch.tensor([j * numel // num_places for j in range(num_places + 1)])
    for key in range(20):
        drawn = places(numel, num_places, key)
        assert drawn.numel() == num_places
        assert (edges[:-1] <= drawn).all()
        assert (drawn < edges[1:]).all()


def test_places_are_uniform_in_their_stratum():
    # 7 strata of 14 or 15 elements; counts of 2000 draws, within 5 standard deviations
    counts = torch.zeros(100)
    for key in range(2000):
        counts[places(100, 7, key * 0x9E3779B97F4A7C15 % 2**64)] += 1
    edges = torch.tensor([j * 100 // 7 for j in range(8)])
    chance = 1 / edges.diff().repeat_interleave(edges.diff())
    assert ((counts - 2000 * chance).abs() < 5 * (2000 * chance * (1 - chance)).sqrt()).all()


def test_places_depend_on_the_key():
    assert not torch.equal(places(1000, 100, 1), places(1000, 100, 2))
    assert torch.equal(places(1000, 100, 1), places(1000, 100, 1))


@every_case
def test_put_is_the_way_back(numel, num_places):
    x, new_error = vector(numel), torch.empty(numel)
    values = take(x, num_places, 9, torch.zeros(numel), new_error)
    strata_put_(new_error, values.unsqueeze(0), key=9)
    assert torch.equal(new_error, x)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", [0, 57, 999])
def test_non_finite_elements_are_seen_wherever_they_are(bad, place):
    x, zeros = vector(1000), torch.zeros(1000)
    x[place] = bad
    for key in range(5):  # mostly the element is not taken
        assert take(x, 100, key)[0].isnan()
        assert take(x, 100, key, zeros, torch.empty(1000))[0].isnan()
        assert take(zeros, 100, key, x, torch.empty(1000))[0].isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_computed_in_float32(dtype):
    x = vector(500).to(dtype)
    assert torch.equal(take(x, 50, 3), take(x.float(), 50, 3))


def test_strided_input():
    x, e = vector(1000), vector(1000, 1)
    assert torch.equal(take(x[::2], 50, 3, e[::2]), take(x[::2].clone(), 50, 3, e[::2].clone()))


def test_empty():
    strata_take(torch.zeros(0), None, None, torch.zeros(0), key=0)
    strata_put_(torch.zeros(0), torch.zeros(2, 0), key=0)


@pytest.mark.parametrize(("numel", "num_places"), [(10, 0), (10, 11), (0, 1)])
def test_strata_must_fit(numel, num_places):
    with pytest.raises(ValueError, match=rf"values has shape \({num_places},\); {numel} elements have 1 to {numel}"):
        strata_take(torch.zeros(numel), None, None, torch.zeros(num_places), key=0)
    with pytest.raises(ValueError, match="values has shape"):
        strata_put_(torch.zeros(numel), torch.zeros(1, num_places), key=0)


def test_lengths_beyond_32_bits():
    # 3·10⁹ elements and 10⁶ strata: products of the two need 62 bits.
    drawn, lengths = reference.draw(3_000_000_000, 1_000_000, 5, CPU)
    assert lengths.unique().tolist() == [3000]
    assert (drawn // 3000 == torch.arange(1_000_000)).all()
