"""Looking at all elements for the ones that matter, and stopping at the first."""

import torch
from torch import Tensor

from thinwire.kernels.cpu import finite as cpu
from thinwire.kernels.dispatch import pick
from thinwire.kernels.reference import finite as reference


def all_finite(payloads: Tensor, start: int, stop: int, dtype: torch.dtype) -> bool:
    """Whether bytes ``start`` to ``stop`` of every row, read as ``dtype``, hold no Inf and no NaN.

    Args:
        payloads: uint8 ``[m, nbytes]``, rows contiguous, any stride between them; m ≥ 1.
        start: a multiple of the dtype's size.
        stop: likewise, at most ``nbytes``.
        dtype: float32, float16 or bfloat16.
    """
    if start == stop:
        return True
    run = pick(payloads.device, cpu=cpu.all_finite, reference=reference.all_finite)
    return run(payloads, start, stop, dtype)


def is_zero(x: Tensor) -> bool:
    """Whether a 1-D float tensor, of any dtype and stride, has no element but zeros."""
    run = pick(x.device, cpu=cpu.is_zero, reference=reference.is_zero)
    return run(x)
