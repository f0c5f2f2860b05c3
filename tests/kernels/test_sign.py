import pytest
import torch

from thinwire.kernels import num_scales, sign_decode_sum, sign_encode, sign_nbytes, sign_vote
from thinwire.kernels.cpu import sign as cpu
from thinwire.kernels.reference import sign as reference

SIZES = [1, 7, 8, 9, 31, 33, 1000, 2047, 2048, 2049, 10001]
INF, NAN = float("inf"), float("nan")


def vector(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def encode(grad, error=None, *, keep=True, block=0, **settings):
    numel = grad.numel()
    payload = torch.full((sign_nbytes(numel, block),), 0xA5, dtype=torch.uint8)
    new_error = torch.full((numel,), NAN) if keep else None
    sign_encode(grad, error, new_error, payload, block=block, **settings)
    split = 4 * num_scales(numel, block)
    return payload[split:], payload[:split].view(torch.float32), new_error


def decode(signs, scales, numel, block=0):
    out = torch.full((numel,), NAN)
    sign_decode_sum(payloads_of(signs, scales), out, block=block)
    return out


def payloads_of(signs, scales):
    return torch.cat([scales.contiguous().view(torch.uint8), signs], dim=1)


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("block", [0, 8, 64, 4096])
@pytest.mark.parametrize("with_error", [True, False])
def test_numba_equals_reference(numel, block, with_error):
    grad, error = vector(numel), vector(numel, 1) if with_error else None
    results = []
    for module in (cpu, reference):
        payload = torch.full((sign_nbytes(numel, block),), 0xA5, dtype=torch.uint8)
        new_error, out = torch.empty(numel), torch.empty(numel)
        module.encode(grad, error, new_error, payload, block or numel, 0.7, 0.25)
        split = 4 * num_scales(numel, block)
        scales, signs = payload[:split].view(torch.float32), payload[split:]
        row_scales = scales * torch.tensor([[1.0], [2.0], [-0.5]])
        module.decode_sum(payloads_of(signs.repeat(3, 1), row_scales), out, block or numel)
        results.append((signs, scales, new_error, out))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)  # tiles are summed in float32


def test_four_elements_by_hand():
    signs, scales, new_error = encode(torch.tensor([0.0, 0.0, 0.0, 5.0]))
    assert signs.tolist() == [0]
    assert scales.tolist() == [1.25]
    assert new_error.tolist() == [-1.25, -1.25, -1.25, 3.75]
    assert decode(signs.view(1, -1), scales.view(1, -1), 4).tolist() == [1.25] * 4


def test_bit_order_and_unused_bits():
    signs, _, _ = encode(torch.tensor([-1.0, 1, 1, 1, 1, 1, 1, -1, 1, -1]))
    assert signs.tolist() == [0b1000_0001, 0b0000_0010]


def test_negative_zero_and_nan_are_not_negative():
    signs, _, _ = encode(torch.tensor([-0.0, NAN, -NAN, -1.0]))
    assert signs.tolist() == [0b1000]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype_and_stride(dtype):
    strided = vector(2000).to(dtype)[::2]
    expected = encode(strided.float().contiguous(), vector(1000, 1))
    for actual, right in zip(encode(strided, vector(1000, 1)), expected, strict=True):
        assert torch.equal(actual, right)


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("place", [0, 500, 999, 1007])
@pytest.mark.parametrize("keep", [True, False])
def test_only_the_scale_of_a_non_finite_block_is_non_finite(bad, place, keep):
    grad = vector(1008)
    grad[place] = bad
    _, scales, _ = encode(grad, block=504, keep=keep)
    assert scales.isfinite().tolist() == [place >= 504, place < 504]


def test_opposite_infinities_in_gradient_and_error_do_not_hide():
    grad, error = vector(100), vector(100)
    grad[50], error[50] = INF, -INF
    assert not encode(grad, error)[1].isfinite()


@pytest.mark.parametrize("numel", [100, 5000])
def test_sum_of_huge_elements_does_not_overflow(numel):
    grad = torch.full((numel,), 3e38)
    signs, scales, new_error = encode(grad)
    assert scales.item() == grad[0]
    assert torch.equal(new_error, torch.zeros(numel))
    assert torch.equal(decode(signs.view(1, -1), scales.view(1, -1), numel), grad)


def test_mean_of_many_elements_is_accurate():
    numel = 3_000_017
    grad = torch.full((numel,), 0.1)  # a running float32 sum would be off by a percent
    _, scales, _ = encode(grad, keep=False)
    torch.testing.assert_close(scales.item(), grad[0].item(), rtol=1e-6, atol=0)


def test_weight_is_on_the_payload_and_not_on_the_error():
    grad = vector(1000)
    signs, scales, new_error = encode(grad)
    weighted_signs, weighted_scales, weighted_error = encode(grad, weight=0.25)
    assert torch.equal(signs, weighted_signs)
    assert torch.equal(0.25 * scales, weighted_scales)
    assert torch.equal(new_error, weighted_error)


def test_rows_may_be_apart():
    numel, block = 1001, 504
    nbytes = sign_nbytes(numel, block)
    rows = torch.randint(256, (3, nbytes + 17), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    payloads = rows[:, :nbytes]
    payloads[:, :8] = torch.tensor([1.0, 2.0]).view(torch.uint8)
    outs = [torch.empty(numel) for _ in range(5)]
    for out, given in zip(outs, [payloads, payloads.contiguous(), *payloads.split(1)], strict=True):
        sign_decode_sum(given, out, block=block)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2] + outs[3] + outs[4])


def test_empty():
    assert num_scales(0, 0) == num_scales(0, 8) == 0
    encode(torch.empty(0))
    assert decode(torch.empty(1, 0, dtype=torch.uint8), torch.empty(1, 0), 0).numel() == 0


def test_wrong_shapes_are_named():
    grad, payload = vector(16), torch.empty(6, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"payload has shape \(5,\); the other arguments call for \(6,\)"):
        sign_encode(grad, None, None, payload[:5])
    with pytest.raises(ValueError, match="payload"):
        sign_encode(grad, None, None, payload, block=8)
    with pytest.raises(ValueError, match="error"):
        sign_encode(grad, vector(15), None, payload)
    with pytest.raises(ValueError, match="new_error"):
        sign_encode(grad, None, vector(15), payload)
    with pytest.raises(ValueError, match="payloads"):
        sign_decode_sum(payload.repeat(2).view(1, 12), torch.empty(16))


def ballots_of(votes):
    payloads = torch.empty(votes.shape[0], sign_nbytes(votes.shape[1], 0) + 3, dtype=torch.uint8)[:, :-3]
    for vote, payload in zip(votes, payloads, strict=True):
        sign_encode(vote, None, None, payload)
    return payloads


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 16, 33])
def test_vote_counts_signs(numel, num_rows):
    votes = torch.stack([vector(numel, seed) for seed in range(num_rows)]).round(decimals=1)
    votes[0] *= votes[0].abs() > 1  # many zeros, which are positive
    abstains = num_rows // 2
    votes[abstains] = 0
    ballots = ballots_of(votes)
    signs = torch.where(votes < 0, -1.0, 1.0)
    signs[[not vote.any() for vote in votes]] = 0
    for run in (sign_vote, cpu.vote, reference.vote):
        out = torch.full((numel,), NAN)
        run(ballots, out)
        assert torch.equal(out, signs.sum(0).sign())


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("run", [sign_vote, reference.vote])
def test_vote_with_a_non_finite_row_is_nan(bad, row, run):
    votes, out = torch.stack([vector(2050, seed) for seed in range(4)]), torch.empty(2050)
    votes[row, 7] = bad
    run(ballots_of(votes), out)
    assert out.isnan().all()


def test_vote_has_no_weight():
    votes, out = torch.tensor([[1e-40, -1e-40], [1e38, 1e38], [-5.0, -5.0]]), torch.empty(2)
    sign_vote(ballots_of(votes), out)
    assert out.tolist() == [1, -1]
    sign_vote(torch.empty(2, 0, dtype=torch.uint8), out[:0])
    with pytest.raises(ValueError, match=r"payloads has shape \(3, 5\); the other arguments call for \(3, 6\)"):
        sign_vote(ballots_of(votes), torch.empty(9))
