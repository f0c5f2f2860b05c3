"""Stochastic rounding to a grid in plain torch; contracts in :mod:`thinwire.kernels.dither`."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from thinwire.kernels.reference.peak import corrected, normalise, scales_from_squares, split_peaks
from thinwire.kernels.reference.random import random_bits


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    key: int,
    natural: bool,
    norm: bool,
    clip: float,
    block: int,
    error_scale: float,
    weight: float,
) -> None:
    top = num_levels(codes.shape[0])
    q = corrected(grad, error, error_scale)
    rows, peaks = split_peaks(q, block)
    if norm or clip:
        peaks = scales_from_squares(rows, peaks, q.numel(), norm, clip)
    y = normalise(rows, peaks).clamp(-1, 1).view(-1)[: q.numel()]
    bits = random_bits(q.numel(), key, 0, q.device)
    levels = _natural_levels(y, top, bits) if natural else _linear_levels(y, top, bits)
    codes.copy_(pack(levels + top, codes.shape[0]))
    torch.mul(peaks, weight, out=scales)
    if new_error is not None:
        torch.sub(q, _values(levels, top, natural) * _spread(peaks, block, q.numel()), out=new_error)


def decode_sum(codes: Tensor, scales: Tensor, out: Tensor, natural: bool, block: int) -> None:
    top = num_levels(codes.shape[1])
    out.fill_(-0.0)  # what zeros of either sign can be added to
    for row, row_scales in zip(codes, scales, strict=True):
        levels = unpack(row, out.numel()) - top
        out.add_(_values(levels, top, natural) * _spread(row_scales, block, out.numel()))


def num_levels(bits: int) -> int:
    """How many levels are above zero: with as many below, and zero, all but one of the codes."""
    return (1 << (bits - 1)) - 1


def pack(codes: Tensor, bits: int) -> Tensor:
    """The ``bits`` lowest bits of integers, one bitmap each."""
    planes = codes >> torch.arange(bits, device=codes.device).unsqueeze(1) & 1
    places = torch.arange(8, device=codes.device)
    return (pad(planes, (0, -codes.numel() % 8)).view(bits, -1, 8) << places).sum(2).to(torch.uint8)


def unpack(planes: Tensor, numel: int) -> Tensor:
    """The integers that :func:`pack` took apart, as int64."""
    places = torch.arange(8, device=planes.device)
    bits = (planes.long().unsqueeze(2) >> places & 1).view(planes.shape[0], -1)[:, :numel]
    return (bits << torch.arange(planes.shape[0], device=planes.device).unsqueeze(1)).sum(0)


def _spread(scales: Tensor, block: int, numel: int) -> Tensor:
    return scales.repeat_interleave(block)[:numel]


def _linear_levels(y: Tensor, top: int, bits: Tensor) -> Tensor:
    # Fixed point with 24 bits after the point, where adding a random fraction and rounding down is exact.
    return (y * float(top << 24)).long() + (bits >> 8) >> 24


def _natural_levels(y: Tensor, top: int, bits: Tensor) -> Tensor:
    # Within an octave the mantissa is the distance from the power of two below, so a random number added to it
    # carries into the exponent with the probability that rounds up.
    magnitude = y.view(torch.int32).long() & 0x7FFFFFFF
    octave = (magnitude + (bits >> 9) >> 23) - (127 - top)
    to_lowest = ((y.abs() * 2.0 ** (top - 1) * 2.0**24).long() > bits >> 8).long()
    level = torch.where(y.abs() >= 2.0 ** (1 - top), octave, to_lowest)
    return torch.where(y < 0, -level, level)


def _values(levels: Tensor, top: int, natural: bool) -> Tensor:
    """What levels stand for, as a part of the peak."""
    if not natural:
        return levels.float() * (1 / top)
    return torch.ldexp(levels.sign().float(), levels.abs() - top)
