"""Eight bits per element: nearest code on a scale set by the largest magnitude of the block it is in."""

from torch import Tensor

from thinwire.kernels.cpu import blockscale as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.reference import blockscale as reference
from thinwire.kernels.sign import num_scales


def blockscale_encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    *,
    block: int = 0,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Round ``q = grad + error_scale * error`` to codes; keep ``new_error = q - code / top * peak``.

    ``peak`` is the largest magnitude of a block, and ``top`` that of the codes: 127 for int8, 448 for float8_e4m3fn.
    A code is ``q / peak * top``, computed in float32 and rounded to nearest even.

    Args:
        grad: 1-D, any float dtype and stride; computed in float32. Not changed.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten. May be ``error`` itself, or None. With non-finite
            input it receives garbage.
        codes: int8 or float8_e4m3fn, contiguous, like ``grad``; overwritten. The dtype chooses the format.
        scales: float32 ``[num_scales(n, block)]``, contiguous; overwritten with ``weight * peak``. A block with an Inf
            or NaN has a scale that is Inf or NaN, and codes 0.
        block: elements that share a scale; 0: all of them.
        error_scale: factor on ``error``.
        weight: factor on what the payload decodes to, and not on the error.

    Raises:
        ValueError: if a shape does not fit ``grad``.

    Source: absmax block scaling as in 8-bit optimizers (arXiv 2110.02861); e4m3 as in FP8 formats for deep learning
    (arXiv 2209.05433).
    """
    grad = as_float32(grad)
    numel = grad.numel()
    expect_shape("codes", codes, numel)
    expect_shape("scales", scales, num_scales(numel, block))
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, numel)
    if new_error is not None:
        expect_shape("new_error", new_error, numel)
    if numel:
        run = pick(grad.device, cpu=cpu.encode, reference=reference.encode)
        run(grad, error, new_error, codes, scales, block or numel, error_scale, weight)


def blockscale_decode_sum(codes: Tensor, scales: Tensor, out: Tensor, *, block: int = 0) -> None:
    """Write ``out = Σ_rows code / top * scale``: what ``m`` payloads of :func:`blockscale_encode` add up to.

    Args:
        codes: int8 or float8_e4m3fn ``[m, n]``, rows contiguous, any stride between them; m ≥ 1.
        scales: float32 ``[m, num_scales(n, block)]``, likewise.
        out: float32 ``[n]``, contiguous; overwritten. Rows are added in order.
        block: as it was encoded with.

    Raises:
        ValueError: if a shape does not fit ``out``.
    """
    numel, rows = out.numel(), codes.shape[0]
    expect_shape("codes", codes, rows, numel)
    expect_shape("scales", scales, rows, num_scales(numel, block))
    if numel:
        run = pick(out.device, cpu=cpu.decode_sum, reference=reference.decode_sum)
        run(codes, scales, out, block or numel)
