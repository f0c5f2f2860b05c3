import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.compress.laws import GOLDEN_INPUT, KEY, SPECS, blank, decode, encode, golden_payloads, rows, vector
from thinwire.compress import Compressor, Key, known, parse

SIZES = [0, 1, 7, 8, 9, 13, 31, 33, 63, 64, 65, 1000, 4095, 4096, 4097]
EPS = torch.finfo(torch.float32).eps
TINY = torch.finfo(torch.float32).tiny

every = pytest.mark.parametrize("compressor", [parse(spec) for spec in SPECS], ids=SPECS)
every_size = pytest.mark.parametrize("numel", SIZES)
finite_vectors = (
    st.integers(1, 80)
    .flatmap(lambda n: arrays("float32", n, elements=st.floats(-(2.0**14), 2.0**14, width=32)))
    .map(torch.from_numpy)
)


def assert_nothing_lost(grad, error, decoded, new_error, weight=1.0):
    grad, error, sent = grad.double(), error.double(), decoded.double() / weight
    slack = 4 * EPS * (grad.abs() + error.abs() + sent.abs()) + 4 * TINY / weight
    assert ((sent + new_error.double() - (grad + error)).abs() <= slack).all()


@every
@every_size
def test_every_byte_of_the_payload_is_written(compressor, numel):
    x = vector(numel)
    assert torch.equal(encode(compressor, x, fill=0xA5), encode(compressor, x, fill=0x5A))
    with_error = [blank(compressor, numel, fill) for fill in (0xA5, 0x5A)]
    for payload in with_error:
        compressor.encode_with_error(x, vector(numel, 1), torch.empty(numel), payload, KEY)
    assert torch.equal(*with_error)


@every
@every_size
@pytest.mark.parametrize(("weight", "error_scale"), [(1.0, 1.0), (0.25, 1.0), (1 / 3, 0.7)])
def test_nothing_is_lost(compressor, numel, weight, error_scale):
    grad, error, new_error = vector(numel), vector(numel, 1), torch.empty(numel)
    payload = blank(compressor, numel)
    compressor.encode_with_error(grad, error, new_error, payload, KEY, weight=weight, error_scale=error_scale)
    assert_nothing_lost(grad, error_scale * error, decode(compressor, payload, numel), new_error, weight)


@every
@settings(max_examples=50, deadline=None, derandomize=True)
@given(grad=finite_vectors)
def test_nothing_is_lost_of_any_finite_vector(compressor, grad):
    numel = grad.numel()
    error, new_error, payload = torch.zeros(numel), torch.empty(numel), blank(compressor, numel)
    compressor.encode_with_error(grad, error, new_error, payload, KEY)
    assert compressor.is_finite(payload.unsqueeze(0))
    assert_nothing_lost(grad, error, decode(compressor, payload, numel), new_error)


@every
@every_size
@pytest.mark.parametrize("error_scale", [1.0, 0.5])
def test_fused_form_equals_plain_form(compressor, numel, error_scale):
    grad, error = vector(numel), vector(numel, 1)
    plain, fused = blank(compressor, numel), blank(compressor, numel)
    plain_error, fused_error = torch.empty(numel), torch.empty(numel)
    for encode_with_error, new_error, payload in [
        (Compressor.encode_with_error, plain_error, plain),
        (type(compressor).encode_with_error, fused_error, fused),
    ]:
        encode_with_error(compressor, grad, error, new_error, payload, KEY, weight=0.25, error_scale=error_scale)
    assert torch.equal(plain, fused)
    torch.testing.assert_close(fused_error, plain_error, rtol=4 * EPS, atol=16 * EPS)


@every
@every_size
def test_new_error_may_be_error_and_inputs_stay(compressor, numel):
    grad, error, new_error = vector(numel), vector(numel, 1), torch.empty(numel)
    payload, payload_in_place = blank(compressor, numel), blank(compressor, numel)
    compressor.encode_with_error(grad, error, new_error, payload, KEY, weight=0.5)
    assert torch.equal(grad, vector(numel))
    assert torch.equal(error, vector(numel, 1))
    compressor.encode_with_error(grad, error, error, payload_in_place, KEY, weight=0.5)
    assert torch.equal(payload, payload_in_place)
    assert torch.equal(new_error, error)
    encode(compressor, grad)
    assert torch.equal(grad, vector(numel))


@every
@every_size
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_decode_adds_rows_in_order(compressor, numel, num_rows):
    if compressor.votes:
        pytest.skip("the law of compressors that do not vote")
    payloads = [
        encode(compressor, vector(numel, r), Key(KEY.seed, KEY.step, KEY.unit, rank=r)) for r in range(num_rows)
    ]
    total = decode(compressor, payloads[0], numel)
    for payload in payloads[1:]:
        total += decode(compressor, payload, numel)
    assert torch.equal(decode(compressor, rows(payloads), numel), total)


@every
@every_size
def test_payload_carries_the_weight(compressor, numel):
    if compressor.votes:
        pytest.skip("a vote has no weight")
    x = vector(numel)
    weighted = decode(compressor, encode(compressor, x, weight=0.25), numel)
    torch.testing.assert_close(weighted, 0.25 * decode(compressor, encode(compressor, x), numel), rtol=EPS, atol=1e-6)


@every
@every_size
def test_votes_are_counted(compressor, numel):
    if not compressor.votes:
        pytest.skip("the law of compressors that vote")
    for num_rows in range(1, 6):
        ballots = torch.stack([vector(numel, r) for r in range(num_rows)])
        payloads = rows([encode(compressor, x, weight=1 / num_rows) for x in ballots])
        majority = torch.where(ballots < 0, -1, 1).sum(0).sign().float()
        assert torch.equal(decode(compressor, payloads, numel), majority)


@every
def test_same_key_same_bytes(compressor):
    x = vector(1000)
    assert torch.equal(encode(compressor, x, Key(5, 6, 7, 8)), encode(compressor, x, Key(5, 6, 7, 8)))


@every
@every_size
def test_finite_input_is_finite(compressor, numel):
    payloads = rows([encode(compressor, 1000 * vector(numel, r)) for r in range(3)])
    assert compressor.is_finite(payloads)
    assert decode(compressor, payloads, numel).isfinite().all()


@every
@every_size
def test_zero_decodes_to_zero(compressor, numel):
    zero = torch.zeros(numel)
    payload, new_error = blank(compressor, numel), torch.ones(numel)
    compressor.encode_with_error(zero, zero, new_error, payload, KEY)
    assert torch.equal(decode(compressor, payload, numel), zero)
    assert torch.equal(new_error, zero)


@every
@pytest.mark.parametrize("numel", [n for n in SIZES if n])
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_non_finite_input_stays_visible(compressor, numel, bad, place):
    x = vector(numel)
    x[{"first": 0, "middle": numel // 2, "last": numel - 1}[place]] = bad
    assert_visible(compressor, encode(compressor, x), numel)
    payload = blank(compressor, numel)
    compressor.encode_with_error(x, vector(numel, 1), torch.empty(numel), payload, KEY)
    assert_visible(compressor, payload, numel)
    compressor.encode_with_error(vector(numel, 1), x, torch.empty(numel), payload, KEY)
    assert_visible(compressor, payload, numel)


def assert_visible(compressor, payload, numel):
    good = encode(compressor, vector(numel, 2))
    for payloads in (payload.unsqueeze(0), rows([good, payload, good])):
        assert not compressor.is_finite(payloads)
        assert not decode(compressor, payloads, numel).isfinite().all()


@every
def test_opposite_infinities_stay_visible(compressor):
    for numel in (2, 64, 1000):
        x = vector(numel)
        x[0], x[-1] = float("inf"), -float("inf")
        assert_visible(compressor, encode(compressor, x), numel)


@every
@every_size
def test_biased_compressors_contract(compressor, numel):
    if compressor.unbiased or compressor.expands:
        pytest.skip("the law of biased compressors, unless they say that they expand")
    for x in (vector(numel), vector(numel) ** 3, torch.arange(numel) % 2 + 0.5):
        dropped = x - decode(compressor, encode(compressor, x), numel)
        assert dropped.double().square().sum() <= x.double().square().sum() * (1 + 1e-6)


@every
def test_unbiased_compressors_are_right_on_average(compressor):
    if not compressor.unbiased:
        pytest.skip("the law of unbiased compressors")
    x = vector(67)
    keys = [Key(11, step, 13, rank=2) for step in range(3000)]
    samples = torch.stack([decode(compressor, encode(compressor, x, key), 67, key) for key in keys]).double()
    standard_error = samples.std(0) / len(keys) ** 0.5
    assert ((samples.mean(0) - x).abs() <= 5 * standard_error + 4 * EPS * x.abs()).all()


@every
@every_size
def test_reducible_payloads_add_up(compressor, numel):
    if not compressor.reducible:
        pytest.skip("the law of reducible compressors")
    a, b = (encode(compressor, vector(numel, seed), weight=0.5) for seed in (0, 1))
    added = (a.view(compressor.sum_dtype) + b.view(compressor.sum_dtype)).view(torch.uint8)
    separate = decode(compressor, rows([a, b]), numel)
    eps = torch.finfo(compressor.sum_dtype).eps
    torch.testing.assert_close(decode(compressor, added, numel), separate, rtol=eps, atol=1e-6)


@every
def test_spec_string_round_trip(compressor):
    assert parse(str(compressor)) == compressor


@every
def test_golden_payload(compressor):
    assert encode(compressor, GOLDEN_INPUT).numpy().tobytes().hex() == golden_payloads()[str(compressor)]


def test_no_compressor_of_the_library_is_left_out():
    # By name: a slotted dataclass is made twice, and both classes stay among the subclasses.
    unseen, names = [Compressor], set()
    while unseen:
        subclasses = unseen.pop().__subclasses__()
        unseen += subclasses
        names |= {c.__name__ for c in subclasses if c.__module__.startswith("thinwire.") and c.__name__[0] != "_"}
    assert names <= {cls.__name__ for cls in known()}
    assert names == {type(parse(spec)).__name__ for spec in SPECS}
