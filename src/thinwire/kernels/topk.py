"""The k elements of largest magnitude, exactly; and what such sparse vectors add up to."""

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu import topk as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.reference import topk as reference


def topk_encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    payload: Tensor,
    *,
    index_dtype: torch.dtype = torch.int32,
    value_dtype: torch.dtype = torch.float16,
    threshold: float | None = None,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Select the k largest of ``q = grad + error_scale * error`` and keep in ``new_error`` what is not sent.

    Exactly k elements: the largest by magnitude, of equal ones those of lower index. NaN counts as larger than Inf, so
    with k ≥ 1 a non-finite element is always among the values.

    Args:
        grad: 1-D, any float dtype and stride; computed in float32. Not changed, unless it is ``new_error``.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten with q, less ``value / weight`` where it is sent. May
            be ``grad`` or ``error`` itself, or None. With non-finite input it receives garbage.
        payload: uint8, contiguous; overwritten. Its size says k, which is at most n. First k indices, ascending; then
            k values, ``weight * q`` there. A finite element beyond the range of the dtype becomes its largest number
            (the rest stays in ``new_error``).
        index_dtype: int32 or int64.
        value_dtype: float16 or float32.
        threshold: if given, zeros and elements of smaller magnitude are not sent. In the places left over, the last
            index stands again (0 if there is none), with value 0.
        error_scale: factor on ``error``.
        weight: positive factor on what is sent, and not on the error.

    Raises:
        ValueError: if a shape does not fit, or ``threshold`` is negative or NaN.

    Source: top-k with error feedback of BytePS-Compress (arXiv 2105.07829), there fused likewise.
    """
    grad = as_float32(grad)
    numel, k = grad.numel(), _count(payload, index_dtype, value_dtype)
    if k > numel:
        raise ValueError(f"cannot select {k} of {numel} elements; make the payload no longer than that of grad")
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, numel)
    if new_error is not None:
        expect_shape("new_error", new_error, numel)
    lowest = 0
    if threshold is not None:
        if not threshold >= 0:
            raise ValueError(f"threshold is {threshold}; it must be at least 0, or None")
        lowest = max(1, int(np.float32(threshold).view(np.int32)))  # magnitudes order like their bits
    if numel:
        run = pick(grad.device, cpu=cpu.encode, reference=reference.encode)
        run(grad, error, new_error, payload, k, index_dtype, value_dtype, lowest, error_scale, weight)


def topk_decode_sum(
    payloads: Tensor,
    out: Tensor,
    *,
    index_dtype: torch.dtype = torch.int32,
    value_dtype: torch.dtype = torch.float16,
) -> None:
    """Write the sum of ``m`` sparse vectors: what they have at their indices, and 0 where there is nothing.

    Args:
        payloads: uint8 ``[m, nbytes]``, rows contiguous, any stride between them; m ≥ 1. Of :func:`topk_encode`.
        out: float32, 1-D, contiguous; overwritten. Values are added in float32, rows in order.
        index_dtype: as they were encoded with.
        value_dtype: likewise.

    Raises:
        ValueError: if a payload's size is not that of a number of elements.
        IndexError: if indices do not ascend or lie outside ``out``, which holds garbage then.
    """
    if k := _count(payloads, index_dtype, value_dtype):
        run = pick(out.device, cpu=cpu.decode_sum, reference=reference.decode_sum)
        run(payloads, out, k, index_dtype, value_dtype)
    else:
        out.zero_()


def _count(payload: Tensor, index_dtype: torch.dtype, value_dtype: torch.dtype) -> int:
    k, rest = divmod(payload.shape[-1], index_dtype.itemsize + value_dtype.itemsize)
    if rest:
        raise ValueError(f"a payload of {payload.shape[-1]} bytes is no number of {index_dtype} and {value_dtype}")
    return k
