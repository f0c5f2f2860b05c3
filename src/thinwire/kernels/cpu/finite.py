"""Looking at all elements with numba; contracts in :mod:`thinwire.kernels.finite`."""

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.rows import flat_rows
from thinwire.kernels.reference import finite as reference

_EXPONENTS = {
    torch.float32: np.array([0x7F800000], np.uint32),
    torch.float16: np.array([0x7C00], np.uint16),
    torch.bfloat16: np.array([0x7F80], np.uint16),
}
"""All bits of the exponent are 1 in Inf and NaN, and in nothing else."""


def all_finite(payloads: Tensor, start: int, stop: int, dtype: torch.dtype) -> bool:
    flat, stride = flat_rows(payloads)
    finite: bool = _all_finite(flat, stride, payloads.shape[0], start, stop, _EXPONENTS[dtype])
    return finite


def is_zero(x: Tensor) -> bool:
    if x.dtype is not torch.float32 or not x.is_contiguous():
        return reference.is_zero(x)
    zero: bool = _is_zero(x.numpy())
    return zero


@compiled
def _all_finite(flat, stride, rows, start, stop, exponents):  # type: ignore[no-untyped-def]
    exponent = exponents[0]
    for r in range(rows):
        found = False
        for bits in flat[r * stride + start : r * stride + stop].view(exponents.dtype):
            found |= bits & exponent == exponent
        if found:
            return False
    return True


@compiled
def _is_zero(x):  # type: ignore[no-untyped-def]
    for value in x:  # noqa: SIM110 - numba
        if value != 0:
            return False
    return True
