"""Block-scaled int8 and fp8 in plain torch; contracts in :mod:`thinwire.kernels.blockscale`."""

import torch
from torch import Tensor

from thinwire.kernels.reference.peak import corrected, normalise, split_peaks

TOP = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    block: int,
    error_scale: float,
    weight: float,
) -> None:
    q = corrected(grad, error, error_scale)
    rows, peaks = split_peaks(q, block)
    y = normalise(rows, peaks) * TOP[codes.dtype]
    rounded = (y.round() if codes.dtype == torch.int8 else y).to(codes.dtype)
    codes.copy_(rounded.view(-1)[: q.numel()])
    torch.mul(peaks, weight, out=scales)
    if new_error is not None:
        torch.sub(q, _values(rounded, peaks).view(-1)[: q.numel()], out=new_error)


def decode_sum(codes: Tensor, scales: Tensor, out: Tensor, block: int) -> None:
    out.fill_(-0.0)  # what zeros of either sign can be added to
    for row, row_scales in zip(codes, scales, strict=True):
        scale = row_scales.repeat_interleave(block)[: out.numel()]
        out.add_(_values(row.unsqueeze(1), scale).squeeze(1))


def _values(codes: Tensor, peaks: Tensor) -> Tensor:
    """The values of ``[rows, columns]`` codes, for one peak a row."""
    return codes.float() * (1 / TOP[codes.dtype]) * peaks.unsqueeze(1)
