import pytest
import torch

from tests.compress.laws import KEY, blank, decode, encode, vector
from thinwire.compress import TopK, parse


@pytest.mark.parametrize(
    ("ratio", "numel", "k"),
    [
        (0.1, 1000, 100),
        (0.1, 5, 1),
        (0.1, 0, 0),
        (0.1, 14, 1),
        (0.1, 15, 2),
        (0.5, 3, 2),
        (1, 7, 7),
        (1e-12, 10, 1),
        (0.01, 3 * 10**9, 3 * 10**7),
    ],
)
def test_number_of_values_is_rounded_half_up_and_at_least_one(ratio, numel, k):
    assert TopK(ratio=ratio).num_values(numel) == k


def test_payload_is_indices_then_values():
    payload = encode(TopK(ratio=0.5), torch.tensor([1.0, -4, 3, 2]))
    assert payload[:8].view(torch.int32).tolist() == [1, 2]
    assert payload[8:].view(torch.float16).tolist() == [-4, 3]


@pytest.mark.parametrize(("values", "value_nbytes"), [("fp16", 2), ("fp32", 4)])
def test_indices_are_64_bits_only_where_needed(values, value_nbytes):
    compressor = TopK(ratio=0.001, values=values)
    assert compressor.payload_nbytes(2**31 - 1) == 2_147_484 * (4 + value_nbytes)
    assert compressor.payload_nbytes(3 * 10**9) == 3_000_000 * (8 + value_nbytes)


@pytest.mark.parametrize("ratio", [1e-12, 1e-9, 1e-8])
def test_size_tells_the_index_type(ratio):
    """However few elements are sent, a payload with int64 indices is larger than any with int32 ones."""
    compressor = TopK(ratio=ratio)
    assert compressor.payload_nbytes(2**31) > compressor.payload_nbytes(2**31 - 1)
    nbytes = compressor.payload_nbytes(2**31)
    payload = torch.zeros(1, nbytes, dtype=torch.uint8)
    assert compressor.is_finite(payload)
    payload[0, nbytes // 10 * 8 :] = 0xFF  # NaN as the first value after int64 indices
    assert not compressor.is_finite(payload)


def test_sparse_vector_is_exact():
    x = torch.zeros(1000)
    x[torch.arange(0, 1000, 101)] = vector(10)
    compressor = TopK(values="fp32")
    new_error, payload = torch.empty(1000), blank(compressor, 1000)
    compressor.encode_with_error(x, torch.zeros(1000), new_error, payload, KEY)
    assert torch.equal(decode(compressor, payload, 1000), x)
    assert torch.equal(new_error, torch.zeros(1000))


def test_value_beyond_fp16_keeps_its_rest_in_the_error():
    x = torch.tensor([1.0, 70000.0, 2.0])
    compressor = TopK(ratio=0.4)
    new_error, payload = torch.empty(3), blank(compressor, 3)
    compressor.encode_with_error(x, torch.zeros(3), new_error, payload, KEY)
    assert compressor.is_finite(payload.unsqueeze(0))
    assert decode(compressor, payload, 3).tolist() == [0, 65504, 0]
    assert new_error.tolist() == [1, 70000 - 65504, 2]


def test_tiny_values_arrive_on_average():
    """Values below the grid of fp16 are sent wrong each time, and right in sum: the error memory sees to it."""
    grad, error, total = torch.tensor([1e-7]), torch.zeros(1), torch.zeros(1)
    for _ in range(100):
        payload = blank(TopK(), 1)
        TopK().encode_with_error(grad, error, error, payload, KEY)
        total += decode(TopK(), payload, 1)
    assert total.item() == pytest.approx(1e-5, rel=0.01)


def test_everything_is_sent_in_turn():
    """With a constant gradient, what error feedback delivers in the long run is the gradient."""
    compressor, grad, error, total = TopK(ratio=0.05), vector(100), torch.zeros(100), torch.zeros(100)
    steps = 400
    for _ in range(steps):
        payload = blank(compressor, 100)
        compressor.encode_with_error(grad, error, error, payload, KEY)
        total += decode(compressor, payload, 100)
    torch.testing.assert_close(total + error, steps * grad, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(total / steps, grad, rtol=0, atol=0.2)


@pytest.mark.parametrize("ratio", [0, -1, 1.5, float("nan"), float("inf"), "half", True, None])
def test_wrong_ratio_is_refused(ratio):
    with pytest.raises(ValueError, match="ratio is a number above 0 and at most 1, not "):
        TopK(ratio=ratio)


@pytest.mark.parametrize("spec", ["topk(ratio=0)", "topk(ratio=-1)", "topk(ratio=1.5)", "topk(ratio=nan)"])
def test_wrong_ratio_in_a_spec_is_refused(spec):
    with pytest.raises(ValueError, match="ratio"):
        parse(spec)


def test_wrong_values_are_refused():
    with pytest.raises(ValueError, match="values is one of fp16, fp32, not 'fp8'"):
        TopK(values="fp8")
