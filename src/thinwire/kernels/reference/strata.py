"""Stratified random places in plain torch; contracts in :mod:`thinwire.kernels.strata`."""

import torch
from torch import Tensor

from thinwire.kernels.reference.peak import corrected
from thinwire.kernels.reference.random import random_bits


def take(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    values: Tensor,
    key: int,
    error_scale: float,
    weight: float,
) -> None:
    q = corrected(grad, error, error_scale)
    places, _ = draw(q.numel(), values.numel(), key, q.device)
    torch.mul(q[places], weight, out=values)
    if not torch.isfinite(q).all():
        values[0] = torch.nan
    if new_error is not None:
        new_error.copy_(q.index_fill(0, places, 0))


def put(out: Tensor, values: Tensor, key: int, scaled: bool, clear: bool) -> None:
    places, lengths = draw(out.numel(), values.shape[1], key, out.device)
    total = torch.zeros_like(values[0])
    for row in values:
        total += row * lengths if scaled else row
    if clear:
        out.zero_()
    out[places] = total


def draw(numel: int, num_places: int, key: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The place in each stratum and the length of each stratum, as int64."""
    edges = torch.arange(num_places + 1, device=device) * numel // num_places
    lengths = edges.diff()
    return edges[:-1] + (lengths * random_bits(num_places, key, 0, device) >> 32), lengths
