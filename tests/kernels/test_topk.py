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
    payload = torch.full((k * (index_dtype.itemsize + dtype.itemsize),), 0xA5, dtype=torch.uint8)
    new_error = torch.full((grad.numel(),), NAN) if keep else None
    if run is topk_encode:
        run(grad, error, new_error, payload, index_dtype=index_dtype, value_dtype=dtype, **settings)
    else:
        run(grad, error, new_error, payload, k, index_dtype, dtype, **{"lowest": 0} | settings)
    split = k * index_dtype.itemsize
    return payload[:split].view(index_dtype), payload[split:].view(dtype), new_error


def payloads_of(indices, values):
    return torch.cat([indices.contiguous().view(torch.uint8), values.contiguous().view(torch.uint8)], dim=1)


def decode(indices, values, out, run=topk_decode_sum):
    payloads = payloads_of(indices, values)
    if run is topk_decode_sum:
        run(payloads, out, index_dtype=indices.dtype, value_dtype=values.dtype)
    else:
        run(payloads, out, indices.shape[1], indices.dtype, values.dtype)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_by_hand(dtype, index_dtype):
    grad = torch.tensor([1.0, -4, 2, 3, -2])
    indices, values, new_error = encode(grad, k=3, dtype=dtype, index_dtype=index_dtype, weight=0.5)
    assert indices.tolist() == [1, 2, 3]
    assert values.tolist() == [-2.0, 1.0, 1.5]
    assert new_error.tolist() == [1, 0, 0, 0, -2]


@pytest.mark.parametrize("numel", [1000, LARGE])
def test_of_equal_magnitudes_the_first_are_taken(numel):
    indices, _, _ = encode(torch.full((numel,), 2.0) * torch.arange(numel).remainder(2).sub(0.5), k=numel // 100)
    assert torch.equal(indices, torch.arange(numel // 100, dtype=torch.int32))


@pytest.mark.parametrize("numel", [1000, LARGE])
def test_nan_is_larger_than_infinity(numel):
    grad = vector(numel)
    grad[5], grad[numel - 7], grad[numel - 1] = INF, -NAN, -INF
    assert encode(grad, k=1)[0].tolist() == [numel - 7]
    assert encode(grad, k=2)[0].tolist() == [5, numel - 7]
    assert encode(grad, k=3)[0].tolist() == [5, numel - 7, numel - 1]


def test_fp16_saturates_and_the_rest_stays_in_the_error():
    grad = torch.tensor([70000.0, -1e30, 65510.0, INF, -INF, NAN, 1.0])
    _, values, new_error = encode(grad, k=7, dtype=torch.float16)
    assert values[:5].tolist() == [65504, -65504, 65504, INF, -INF]
    assert values[5].isnan()
    assert new_error[:3].tolist() == [70000 - 65504, grad[1].item() + 65504, 6]
    assert new_error[6] == 0


def test_fp16_rounding_stays_in_the_error():
    grad = torch.tensor([1.0001, 3e-8, 1e-12])
    _, values, new_error = encode(grad, k=3, dtype=torch.float16)
    assert torch.equal(values, grad.half())
    assert torch.equal(new_error, (grad.double() - grad.half().double()).float())


@pytest.mark.parametrize("numel", [1000, LARGE])
@pytest.mark.parametrize("with_error", [True, False])
def test_new_error_may_be_none_or_error_itself(numel, with_error):
    grad, error = vector(numel), vector(numel, 1) if with_error else None
    indices, values, new_error = encode(grad, error, k=17)
    kept_not = encode(grad, error, k=17, keep=False)
    assert torch.equal(kept_not[0], indices)
    assert torch.equal(kept_not[1], values)
    assert torch.equal(grad, vector(numel))
    if with_error:
        assert torch.equal(error, vector(numel, 1))
        topk_encode(grad, error, error, torch.empty(17 * 8, dtype=torch.uint8), value_dtype=torch.float32)
        assert torch.equal(error, new_error)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype_and_stride(dtype):
    strided = vector(2000).to(dtype)[::2]
    expected = encode(strided.float().contiguous(), vector(1000, 1), k=10)
    for actual, right in zip(encode(strided, vector(1000, 1), k=10), expected, strict=True):
        assert torch.equal(actual, right)


def test_last_of_many_in_half_precision():
    grad = torch.zeros(70_000, dtype=torch.float16)
    grad[69_999] = 1
    indices, values, _ = encode(grad, k=1, dtype=torch.float16)
    assert (indices.item(), values.item()) == (69_999, 1.0)


def test_wrong_shapes_are_named():
    grad, payload = vector(4), torch.empty(12, dtype=torch.uint8)
    with pytest.raises(ValueError, match="cannot select 5 of 4"):
        topk_encode(grad, None, None, torch.empty(30, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"13 bytes is no number of torch\.int32 and torch\.float16"):
        topk_encode(grad, None, None, torch.empty(13, dtype=torch.uint8))
    with pytest.raises(ValueError, match="error"):
        topk_encode(grad, vector(3), None, payload)
    with pytest.raises(ValueError, match="new_error"):
        topk_encode(grad, None, vector(5), payload)


def test_empty():
    encode(torch.empty(0), k=0)
    out = torch.ones(3)
    decode(torch.empty(2, 0, dtype=torch.int32), torch.empty(2, 0), out)
    assert out.tolist() == [0, 0, 0]


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
    decode(indices, values, expected, reference.decode_sum)
    around = torch.full((numel + 40,), 7.0)  # results start anywhere in a cache line, and end there
    decode(indices, values, around[start : start + numel])
    assert torch.equal(around[start : start + numel], expected)
    assert (around[:start] == 7).all()
    assert (around[start + numel :] == 7).all()
    apart = torch.empty(numel)
    rows = payloads_of(indices, values)
    rows_apart = torch.nn.functional.pad(rows, (0, 13))[:, : rows.shape[1]]
    topk_decode_sum(rows_apart, apart, index_dtype=index_dtype, value_dtype=dtype)
    assert torch.equal(apart, expected)


def test_decode_sum_keeps_non_finite_values():
    out = torch.empty(40)
    decode(torch.tensor([[1, 5], [5, 39]]), torch.tensor([[float("nan"), 2.0], [float("inf"), -1.0]]), out)
    assert torch.isnan(out[1])
    assert out[5] == float("inf")
    assert out[39] == -1


@pytest.mark.parametrize(("index", "why"), [(-1, "do not ascend from 0"), (10, "outside"), (2**31 - 1, "outside")])
@pytest.mark.parametrize("run", [topk_decode_sum, reference.decode_sum])
def test_decode_sum_refuses_indices_outside(index, why, run):
    with pytest.raises(IndexError, match=why):
        decode(torch.tensor([[3, index]], dtype=torch.int32), torch.ones(1, 2), torch.zeros(10), run)


@pytest.mark.parametrize("run", [topk_decode_sum, reference.decode_sum])
def test_decode_sum_refuses_indices_that_do_not_ascend(run):
    with pytest.raises(IndexError, match="ascend"):
        decode(torch.tensor([[4000, 3]], dtype=torch.int32), torch.ones(1, 2), torch.zeros(5000), run)


def test_decode_sum_refuses_other_sizes():
    with pytest.raises(ValueError, match="13 bytes"):
        topk_decode_sum(torch.zeros(1, 13, dtype=torch.uint8), torch.zeros(10))


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS.keys())
@pytest.mark.parametrize("numel", [1, 7, 8, 9, 31, 33, 2047, 2049, LARGE])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_threshold_equals_reference(make, numel, ratio):
    k = max(1, int(ratio * numel))
    for error in (None, vector(numel, 3)):
        key = make(numel).abs().nan_to_num(INF).view(torch.int32)
        for lowest in {1, int(key.max()), int(key.sort(descending=True).values[min(2 * k, numel - 1)]), int(key[0])}:
            results = [
                encode(make(numel), error, k=k, run=module.encode, lowest=max(1, lowest), error_scale=0.7, weight=0.25)
                for module in (cpu, reference)
            ]
            for ours, right in zip(*results, strict=True):
                torch.testing.assert_close(ours, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("threshold", "indices", "values", "left"),
    [
        (None, [1, 2, 3, 4], [-4, 2, 3, -2], [1, 0, 0, 0, 0, 0]),
        (0, [1, 2, 3, 4], [-4, 2, 3, -2], [1, 0, 0, 0, 0, 0]),
        (2, [1, 2, 3, 4], [-4, 2, 3, -2], [1, 0, 0, 0, 0, 0]),
        (2.5, [1, 3, 3, 3], [-4, 3, 0, 0], [1, 0, 2, 0, -2, 0]),
        (5, [0, 0, 0, 0], [0, 0, 0, 0], [1, -4, 2, 3, -2, 0]),
    ],
)
def test_places_left_over_decode_to_nothing(threshold, indices, values, left):
    grad = torch.tensor([1.0, -4, 2, 3, -2, 0])
    actual = encode(grad, k=4, threshold=threshold)
    assert [x.tolist() for x in actual] == [indices, values, left]
    out = torch.empty(6)
    decode(actual[0].unsqueeze(0), actual[1].unsqueeze(0), out)
    assert torch.equal(out, grad - actual[2])


def test_new_error_may_be_grad():
    grad = vector(LARGE)
    expected = encode(grad, k=50, dtype=torch.float16)
    payload = torch.empty(300, dtype=torch.uint8)
    topk_encode(grad, None, grad, payload)
    assert torch.equal(grad, expected[2])
    assert torch.equal(payload.unsqueeze(0), payloads_of(expected[0].unsqueeze(0), expected[1].unsqueeze(0)))


@pytest.mark.parametrize("threshold", [-1.0, NAN])
def test_wrong_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match=f"threshold is {threshold}; it must be at least 0, or None"):
        encode(vector(4), k=1, threshold=threshold)
