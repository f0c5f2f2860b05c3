import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.kernels import topk_decode_sum, topk_encode
from thinwire.kernels.cpu import topk as cpu
from thinwire.kernels.reference import topk as reference

INF, NAN = float("inf"), float("nan")
LARGE = 50_001  # beyond what is selected from directly: the way through a sample and candidates


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def vector(numel, seed=0):
    return torch.randn(numel, generator=generator(seed))


def encode(
    grad, error=None, *, k, keep=True, dtype=torch.float32, index_dtype=torch.int32, run=topk_encode, **settings
):
    indices, values = torch.full((k,), -1, dtype=index_dtype), torch.full((k,), NAN, dtype=dtype)
    new_error = torch.full((grad.numel(),), NAN) if keep else None
    run(grad, error, new_error, indices, values, **settings)
    return indices, values, new_error


def assert_equals_reference(grad, error, k, dtype=torch.float16):
    factors = {"error_scale": 0.7, "weight": 0.25}
    actual = encode(grad, error, k=k, dtype=dtype, run=cpu.encode, **factors)
    expected = encode(grad, error, k=k, dtype=dtype, run=reference.encode, **factors)
    for ours, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=0, equal_nan=True)


INPUTS = {
    "normal": vector,
    "heavy tails": lambda n: vector(n) ** 5,
    "zero": torch.zeros,
    "equal": lambda n: torch.full((n,), -3.0),
    "equal magnitudes": lambda n: vector(n).sign() * 2,
    "few values": lambda n: (vector(n) * 2).round(),
    "mostly zero": lambda n: vector(n) * (vector(n, 1) > 2.6),
    "one non-zero": lambda n: (torch.arange(n) == n - 1) * 1.0,
    "ascending": lambda n: torch.arange(n) * 1.0,
    "descending": lambda n: torch.arange(n).flip(0) * -1.0,
    "large half": lambda n: vector(n) * (1 + 1000 * (torch.arange(n) > n // 2)),
    "large where sampled": lambda n: 1 / (1.0 + torch.arange(n) % (n // 256 or 1)),
    "tiny": lambda n: vector(n) * 1e-42,
    "huge": lambda n: vector(n) * 1e37,
    "NaN and Inf": lambda n: torch.where(vector(n, 1) > 2, INF, vector(n)).where(vector(n, 2) < 2.5, -NAN),
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS.keys())
@pytest.mark.parametrize("numel", [1, 2, 9, 1000, 2049, LARGE])
@pytest.mark.parametrize("ratio", [1e-9, 0.001, 0.01, 0.3, 1.0])
def test_numba_equals_reference(make, numel, ratio):
    k = max(1, int(ratio * numel))
    assert_equals_reference(make(numel), None, k)
    assert_equals_reference(make(numel), vector(numel, 3), k)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(values=st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.5, INF, -INF, NAN, -NAN]), min_size=1), data=st.data())
def test_ties_and_non_finite_values_in_any_order(values, data):
    assert_equals_reference(torch.tensor(values), None, data.draw(st.integers(0, len(values))))


def sparse_rows(numel: int, k: int, num_rows: int, dtype: torch.dtype, index_dtype: torch.dtype):
    places = [torch.randperm(numel, generator=generator(r))[:k].sort().values for r in range(num_rows)]
    return torch.stack(places).to(index_dtype), torch.randn(num_rows, k, generator=generator()).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("numel", [1, 7, 8, 9, 31, 33, 2047, 2048, 2049, 10_000])
@pytest.mark.parametrize("start", [0, 3, 16])
def test_decode_sum_equals_reference(numel, start, dtype, index_dtype):
    indices, values = sparse_rows(numel, max(1, numel // 3), 3, dtype, index_dtype)
    expected = torch.empty(numel)
    reference.decode_sum(indices, values.float(), expected)
    around = torch.full((numel + 40,), 7.0)  # results start anywhere in a cache line, and end there
    topk_decode_sum(indices, values, around[start : start + numel])
    assert torch.equal(around[start : start + numel], expected)
    assert (around[:start] == 7).all()
    assert (around[start + numel :] == 7).all()
    apart = torch.empty(numel)
    topk_decode_sum(indices.repeat(1, 2)[:, : indices.shape[1]], values.repeat(1, 2)[:, : indices.shape[1]], apart)
    assert torch.equal(apart, expected)


def test_decode_sum_keeps_non_finite_values():
    out = torch.empty(40)
    topk_decode_sum(torch.tensor([[1, 5], [5, 39]]), torch.tensor([[float("nan"), 2.0], [float("inf"), -1.0]]), out)
    assert torch.isnan(out[1])
    assert out[5] == float("inf")
    assert out[39] == -1


@pytest.mark.parametrize("index", [-1, 10, 2**31 - 1])
@pytest.mark.parametrize("decode", [topk_decode_sum, reference.decode_sum])
def test_decode_sum_refuses_indices_outside(index, decode):
    with pytest.raises(IndexError, match=r"outside|ascend"):
        decode(torch.tensor([[3, index]], dtype=torch.int32), torch.ones(1, 2), torch.zeros(10))


@pytest.mark.parametrize("decode", [topk_decode_sum, reference.decode_sum])
def test_decode_sum_refuses_indices_that_do_not_ascend(decode):
    with pytest.raises(IndexError, match="ascend"):
        decode(torch.tensor([[4000, 3]], dtype=torch.int32), torch.ones(1, 2), torch.zeros(5000))


def test_decode_sum_refuses_other_shapes():
    with pytest.raises(ValueError, match="values"):
        topk_decode_sum(torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, 3), torch.zeros(10))
