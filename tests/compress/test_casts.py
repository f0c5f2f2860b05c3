import pytest
import torch

from tests.compress.laws import KEY, blank, decode, encode, rows, vector
from thinwire.compress import BFloat16, Float16, Identity

INF = float("inf")
casts = pytest.mark.parametrize("cast", [Float16(), BFloat16()], ids=str)


@casts
def test_payload_is_the_rounded_vector(cast):
    x = vector(1001)
    assert torch.equal(encode(cast, x).view(cast.dtype), x.to(cast.dtype))
    assert cast.payload_nbytes(1001) == 2002


@casts
def test_what_the_dtype_can_say_is_exact(cast):
    x = vector(100).to(cast.dtype).float()
    new_error, payload = torch.empty(100), blank(cast, 100)
    cast.encode_with_error(x, torch.zeros(100), new_error, payload, KEY)
    assert torch.equal(decode(cast, payload, 100), x)
    assert torch.equal(new_error, torch.zeros(100))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_weights_keep_a_sum_of_fp16_payloads_in_range(num_ranks):
    """A plain fp16 sum of 30000 on each rank overflows; each rank's share of the mean does not."""
    payload = encode(Float16(), torch.full((3,), 30000.0), weight=1 / num_ranks)
    total = payload.view(torch.float16)
    for _ in range(num_ranks - 1):
        total = total + payload.view(torch.float16)
    assert decode(Float16(), total.view(torch.uint8), 3).tolist() == [30000.0] * 3


def test_fp16_overflow_is_an_infinity_that_is_seen():
    payload = encode(Float16(), torch.tensor([1.0, 70000.0]))
    assert decode(Float16(), payload, 2).tolist() == [1, INF]
    assert not Float16().is_finite(payload.unsqueeze(0))
    assert BFloat16().is_finite(encode(BFloat16(), torch.tensor([1.0, 70000.0])).unsqueeze(0))


@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
@pytest.mark.parametrize("compressor", [Float16(), BFloat16(), Identity()], ids=str)
def test_a_bad_element_in_any_row_is_seen(compressor, bad):
    payloads = [encode(compressor, vector(9, r)) for r in range(3)]
    assert compressor.is_finite(rows(payloads))
    for r in range(3):
        x = vector(9, r)
        x[8] = bad
        assert not compressor.is_finite(rows([*payloads[:r], encode(compressor, x), *payloads[r + 1 :]]))


def test_tiny_values_arrive_on_average():
    """Values below the grid of fp16 are sent wrong each time, and right in sum: the error memory sees to it."""
    grad, error, total = torch.tensor([1e-7]), torch.zeros(1), torch.zeros(1)
    for _ in range(100):
        payload = blank(Float16(), 1)
        Float16().encode_with_error(grad, error, error, payload, KEY)
        total += decode(Float16(), payload, 1)
    assert total.item() == pytest.approx(1e-5, rel=0.01)


def test_identity_is_the_vector_itself():
    x = vector(7)
    assert torch.equal(encode(Identity(), x).view(torch.float32), x)
    assert Identity().payload_nbytes(7) == 28
    assert Identity().reducible
    assert Identity().unbiased
