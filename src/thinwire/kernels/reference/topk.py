"""Exact top-k in plain torch; contracts in :mod:`thinwire.kernels.topk`."""

import torch
from torch import Tensor

NAN_KEY = 0x7F800001


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    payload: Tensor,
    k: int,
    index_dtype: torch.dtype,
    value_dtype: torch.dtype,
    lowest: int,
    error_scale: float,
    weight: float,
) -> None:
    indices, values = _parts(payload, k, index_dtype, value_dtype)
    # Two roundings, not the one of torch.add's fused alpha: the same bits on every device.
    q = grad if error is None else grad + error * error_scale
    # Without their sign bit, floats order like integers. The sort is stable: of equal ones the first come first.
    key = (q.view(torch.int32) & 0x7FFFFFFF).clamp(max=NAN_KEY)
    order = key.sort(descending=True, stable=True).indices[:k]
    order = order[key[order] >= lowest].sort().values
    indices.fill_(int(order[-1]) if order.numel() else 0)[: order.numel()] = order
    values.zero_()
    indices, values = indices[: order.numel()], values[: order.numel()]
    selected = q[order]
    sent = selected * weight
    limit = torch.finfo(values.dtype).max
    values.copy_(torch.where(selected.isfinite(), sent.clamp(-limit, limit), sent))
    if new_error is not None:
        new_error.copy_(q)
        new_error[order] = (selected.double() - values.double() / weight).float()


def decode_sum(payloads: Tensor, out: Tensor, k: int, index_dtype: torch.dtype, value_dtype: torch.dtype) -> None:
    out.zero_()
    for payload in payloads:
        indices, values = _parts(payload.clone(), k, index_dtype, value_dtype)
        if (indices.diff() < 0).any() or (indices < 0).any():
            raise IndexError("indices do not ascend from 0")
        if (indices >= out.numel()).any():
            raise IndexError("an index is outside the vector")
        out.index_add_(0, indices.long(), values.float())


def _parts(payload: Tensor, k: int, index_dtype: torch.dtype, value_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    split = k * index_dtype.itemsize
    return payload[:split].view(index_dtype), payload[split:].view(value_dtype)
