"""The k elements of largest magnitude, exactly; and what such sparse vectors add up to."""

from torch import Tensor

from thinwire.kernels.cpu import topk as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.reference import topk as reference


def topk_encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    indices: Tensor,
    values: Tensor,
    *,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Select the k largest of ``q = grad + error_scale * error`` and keep in ``new_error`` what is not sent.

    Exactly k elements: the largest by magnitude, of equal ones those of lower index. NaN counts as larger than Inf, so
    with k ≥ 1 a non-finite element is always among the values.

    Args:
        grad: 1-D, any float dtype and stride; computed in float32. Not changed.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten with q, less ``values / weight`` at ``indices``. May
            be ``error`` itself, or None. With non-finite input it receives garbage.
        indices: int32 or int64 ``[k]``, contiguous, k ≤ n; overwritten, ascending.
        values: float16 or float32 ``[k]``, contiguous; overwritten with ``weight * q[indices]``. A finite element
            beyond the range of the dtype becomes its largest number (the rest stays in ``new_error``).
        error_scale: factor on ``error``.
        weight: positive factor on what is sent, and not on the error.

    Raises:
        ValueError: if a shape does not fit.

    Source: top-k with error feedback of BytePS-Compress (arXiv 2105.07829), there fused likewise.
    """
    grad = as_float32(grad)
    numel, k = grad.numel(), indices.numel()
    if k > numel:
        raise ValueError(f"cannot select {k} of {numel} elements; make indices no longer than grad")
    expect_shape("values", values, k)
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, numel)
    if new_error is not None:
        expect_shape("new_error", new_error, numel)
    if numel:
        run = pick(grad.device, cpu=cpu.encode, reference=reference.encode)
        run(grad, error, new_error, indices, values, error_scale, weight)


def topk_decode_sum(indices: Tensor, values: Tensor, out: Tensor) -> None:
    """Write the sum of ``m`` sparse vectors: ``values[r, j]`` at ``indices[r, j]``, and 0 where there is none.

    Args:
        indices: int32 or int64 ``[m, k]``, rows contiguous and ascending; m ≥ 1.
        values: any float dtype ``[m, k]``; added in float32, rows in order.
        out: float32, 1-D, contiguous; overwritten.

    Raises:
        ValueError: if the shapes differ.
        IndexError: if indices do not ascend or lie outside ``out``, which holds garbage then.
    """
    expect_shape("values", values, *indices.shape)
    if indices.numel():
        run = pick(out.device, cpu=cpu.decode_sum, reference=reference.decode_sum)
        run(indices, as_float32(values), out)
    else:
        out.zero_()
