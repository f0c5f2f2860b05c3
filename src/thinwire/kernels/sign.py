"""One bit per element: the sign, times the mean magnitude of the block it is in; or the sign that most rows have."""

from torch import Tensor

from thinwire.kernels.cpu import sign as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.reference import sign as reference


def num_scales(numel: int, block: int) -> int:
    """How many scales a vector has: one for each ``block`` elements begun, one in all where ``block`` is 0."""
    return -(-numel // (block or max(numel, 1)))


def sign_nbytes(numel: int, block: int) -> int:
    """How many bytes the scales and signs of a vector are."""
    return 4 * num_scales(numel, block) + (numel + 7) // 8


def sign_encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    payload: Tensor,
    *,
    block: int = 0,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Pack the signs of ``q = grad + error_scale * error`` and keep ``new_error = q - sign * scale / weight``.

    Args:
        grad: 1-D, any float dtype and stride; computed in float32. Not changed.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten. May be ``error`` itself, or None. With non-finite
            input it receives garbage.
        payload: uint8 ``[sign_nbytes(n, block)]``, contiguous; overwritten. First the scales, float32, one for each
            block: ``weight * mean |q|``, summed in float64; finite exactly if all of the block is (and the weighted
            mean fits float32). Then the signs: bit i of byte j is 1 where element 8j + i is negative: 0 for −0.0 and
            NaN, and past the end.
        block: elements that share a scale, a multiple of 8; 0: all of them.
        error_scale: factor on ``error``.
        weight: factor on what the payload decodes to, and not on the error.

    Raises:
        ValueError: if a shape does not fit ``grad``.

    Source: scaled 1-bit compression of BytePS-Compress (arXiv 2105.07829).
    """
    grad = as_float32(grad)
    numel = grad.numel()
    expect_shape("payload", payload, sign_nbytes(numel, block))
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, numel)
    if new_error is not None:
        expect_shape("new_error", new_error, numel)
    if numel:
        run = pick(grad.device, cpu=cpu.encode, reference=reference.encode)
        run(grad, error, new_error, payload, block or numel, error_scale, weight)


def sign_decode_sum(payloads: Tensor, out: Tensor, *, block: int = 0) -> None:
    """Write ``out = Σ_rows ±scale``: what ``m`` payloads of :func:`sign_encode` add up to.

    Args:
        payloads: uint8 ``[m, sign_nbytes(n, block)]``, rows contiguous, any stride between them; m ≥ 1.
        out: float32 ``[n]``, contiguous; overwritten. Rows are added in order.
        block: as it was encoded with.

    Raises:
        ValueError: if a shape does not fit ``out``.
    """
    numel = out.numel()
    expect_shape("payloads", payloads, payloads.shape[0], sign_nbytes(numel, block))
    if numel:
        run = pick(out.device, cpu=cpu.decode_sum, reference=reference.decode_sum)
        run(payloads, out, block or numel)


def sign_vote(payloads: Tensor, out: Tensor) -> None:
    """Write the sign that most of ``m`` payloads have: 1, −1, or 0 for a tie.

    Args:
        payloads: uint8 ``[m, sign_nbytes(n, 0)]``, rows contiguous, any stride between them; 1 ≤ m ≤ 2²⁴. Of
            :func:`sign_encode` with one scale in all. A row whose scale is 0 abstains; one whose scale is Inf or NaN
            makes all of ``out`` NaN.
        out: float32 ``[n]``, contiguous; overwritten.

    Raises:
        ValueError: if a shape does not fit ``out``.

    Source: majority vote of signSGD (arXiv 1802.04434).
    """
    numel = out.numel()
    expect_shape("payloads", payloads, payloads.shape[0], sign_nbytes(numel, 0))
    if numel:
        run = pick(out.device, cpu=cpu.vote, reference=reference.vote)
        run(payloads, out)
