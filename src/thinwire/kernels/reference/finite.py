"""Looking at all elements in plain torch; contracts in :mod:`thinwire.kernels.finite`."""

import torch
from torch import Tensor


def all_finite(payloads: Tensor, start: int, stop: int, dtype: torch.dtype) -> bool:
    return bool(torch.isfinite(payloads[:, start:stop].contiguous().view(dtype)).all())


def is_zero(x: Tensor) -> bool:
    return not bool(x.any())
