"""Exact top-k in plain torch; contracts in :mod:`thinwire.kernels.topk`."""

import torch
from torch import Tensor

NAN_KEY = 0x7F800001


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    indices: Tensor,
    values: Tensor,
    error_scale: float,
    weight: float,
) -> None:
    # Two roundings, not the one of torch.add's fused alpha: the same bits on every device.
    q = grad if error is None else grad + error * error_scale
    # Without their sign bit, floats order like integers. The sort is stable: of equal ones the first come first.
    key = (q.view(torch.int32) & 0x7FFFFFFF).clamp(max=NAN_KEY)
    order = key.sort(descending=True, stable=True).indices[: indices.numel()]
    indices.copy_(order.sort().values)
    selected = q[indices]
    sent = selected * weight
    limit = torch.finfo(values.dtype).max
    values.copy_(torch.where(selected.isfinite(), sent.clamp(-limit, limit), sent))
    if new_error is not None:
        new_error.copy_(q)
        new_error[indices] = (selected.double() - values.double() / weight).float()


def decode_sum(indices: Tensor, values: Tensor, out: Tensor) -> None:
    out.zero_()
    for row_indices, row_values in zip(indices.long(), values, strict=True):
        if (row_indices.diff() < 0).any() or (row_indices < 0).any():
            raise IndexError("indices do not ascend from 0")
        if (row_indices >= out.numel()).any():
            raise IndexError("an index is outside the vector")
        out.index_add_(0, row_indices, row_values)
