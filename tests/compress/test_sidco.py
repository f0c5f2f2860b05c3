import pytest
import torch

from tests.compress.laws import KEY, blank, decode, encode, vector
from thinwire.compress import SIDCo, TopK, parse


def laplace(numel):
    return torch.empty(numel).exponential_(generator=torch.Generator().manual_seed(5)) * vector(numel).sign()


VECTORS = {
    "normal": vector,
    "laplace": laplace,
    "products": lambda n: vector(n) * vector(n, 1),
    "cubes": lambda n: vector(n) ** 3,
    "fifth powers": lambda n: vector(n) ** 5,
    "student": lambda n: vector(n) / (vector(n, 1) ** 2 + vector(n, 2) ** 2 + vector(n, 3) ** 2).sqrt(),
}


@pytest.mark.parametrize("make", VECTORS.values(), ids=VECTORS.keys())
@pytest.mark.parametrize("numel", [20_000, 300_000])
@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_about_the_ratio_is_sent(make, numel, ratio):
    compressor = SIDCo(ratio=ratio)
    sent = decode(compressor, encode(compressor, make(numel)), numel).count_nonzero()
    assert 0.65 * compressor.num_values(numel) <= sent <= compressor.num_values(numel)


@pytest.mark.parametrize("make", VECTORS.values(), ids=VECTORS.keys())
@pytest.mark.parametrize("stages", [0, 1, 3])
def test_what_is_sent_is_the_largest(make, stages):
    x, compressor = make(20_000), SIDCo(ratio=0.01, values="fp32", stages=stages)
    decoded = decode(compressor, encode(compressor, x), 20_000)
    sent = int(decoded.count_nonzero())
    assert 1 <= sent <= 200
    exact = TopK(ratio=sent / 20_000, values="fp32")
    assert torch.equal(decoded, decode(exact, encode(exact, x), 20_000))


def test_more_than_fit_are_sent_as_top_k_sends_them():
    for x in (vector(20_000) ** 9, torch.full((20_000,), -3.0)):  # one stage lets far too many pass; then all of them
        compressor = SIDCo(ratio=0.001, stages=1)
        assert torch.equal(encode(compressor, x), encode(TopK(ratio=0.001), x))


def test_places_left_over():
    x = torch.zeros(1000)
    x[[3, 500, 998]] = torch.tensor([1.0, -2.0, 4.0])
    payload = encode(SIDCo(ratio=0.005), x)
    assert payload[:20].view(torch.int32).tolist() == [3, 500, 998, 998, 998]
    assert payload[20:].view(torch.float16).tolist() == [1, -2, 4, 0, 0]
    assert torch.equal(decode(SIDCo(ratio=0.005), payload, 1000), x)


def test_a_constant_vector_does_not_wait_for_ever():
    compressor, error, total = SIDCo(ratio=0.1), torch.zeros(100), torch.zeros(100)
    for _ in range(50):
        payload = blank(compressor, 100)
        compressor.encode_with_error(torch.ones(100), error, error, payload, KEY)
        total += decode(compressor, payload, 100)
    assert total.min() > 0


@pytest.mark.parametrize("stages", [0, 2])
def test_everything_is_sent_in_turn(stages):
    compressor, grad, error, total = SIDCo(ratio=0.05, stages=stages), vector(100), torch.zeros(100), torch.zeros(100)
    steps = 400
    for _ in range(steps):
        payload = blank(compressor, 100)
        compressor.encode_with_error(grad, error, error, payload, KEY)
        total += decode(compressor, payload, 100)
    torch.testing.assert_close(total + error, steps * grad, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(total / steps, grad, rtol=0, atol=0.3)


def test_declared_facts():
    assert SIDCo().keeps_errors
    assert not SIDCo().expands
    assert SIDCo(ratio=0.1).payload_nbytes(1001) == TopK(ratio=0.1).payload_nbytes(1001)


@pytest.mark.parametrize(
    ("settings", "message"),
    [(f"stages={s}", "stages is an integer from 0 .* to 20, not") for s in (-1, 21, 1.0, "true", "adaptive")]
    + [("ratio=0", "ratio is a number above 0 and at most 1"), ("values=fp8", "values is one of fp16, fp32")],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        parse(f"sidco({settings})")
