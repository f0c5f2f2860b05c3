"""Low-rank factors in plain torch; contracts in :mod:`thinwire.kernels.lowrank`."""

import math

import torch
from torch import Tensor

DEPENDENT = 1e-6
SETTLED = 0.99


def left(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    basis: Tensor,
    left: Tensor,
    n: int,
    m: int,
    error_scale: float,
    weight: float,
) -> None:
    q = (grad if error is None else grad + error * error_scale).view(n, m)
    found = basis @ q.T
    torch.mul(found, weight, out=left)
    _keep(q, found, basis, new_error)


def right(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    basis: Tensor,
    right: Tensor,
    n: int,
    m: int,
    error_scale: float,
    weight: float,
) -> None:
    q = (grad if error is None else grad + error * error_scale).view(n, m)
    found = basis @ q
    torch.mul(found, weight, out=right)
    _keep(q, basis, found, new_error)


def _keep(q: Tensor, left: Tensor, right: Tensor, new_error: Tensor | None) -> None:
    """What the terms leave of ``q``, one by one: a product of matrices may round to TF32, and lose what that drops."""
    if new_error is not None:
        rest = new_error.view(q.shape).copy_(q)
        for x, y in zip(left, right, strict=True):
            rest.sub_(torch.outer(x, y))


def expand(left: Tensor, right: Tensor, out: Tensor) -> None:
    total = out.zero_().view(left.shape[1], right.shape[1])
    for x, y in zip(left, right, strict=True):
        total.add_(torch.outer(x, y))


def orthonormalise_(rows: Tensor) -> None:
    if not rows.isfinite().all():
        rows.fill_(torch.nan)
        return
    basis = rows.double()
    for i, row in enumerate(basis):
        norm = _take_(basis[:i], row)
        if norm == 0:
            axis = _free_axis(basis[:i], row.numel())
            row.zero_()[axis] = 1
            norm = _take_(basis[:i], row)
        row.div_(norm)
    rows.copy_(basis)


def _take_(found: Tensor, row: Tensor) -> float:
    norm = math.sqrt(_sum(row * row))
    enough = DEPENDENT * norm
    before = math.inf if found.shape[0] else norm
    while enough < norm < SETTLED * before:
        for factor, other in zip(_sum(found * row), found, strict=True):
            row.sub_(factor * other)
        before, norm = norm, math.sqrt(_sum(row * row))
    return norm if norm > enough else 0.0


def _free_axis(found: Tensor, width: int) -> int:
    rest = torch.ones(width, dtype=torch.float64, device=found.device)
    for other in found:
        rest -= other * other
    enough = 0.5 * (width - found.shape[0]) / width
    return int((rest >= enough).nonzero()[0])


def _sum(terms: Tensor) -> Tensor:
    """Over the last dimension, by halves: what torch's own sum adds to what depends on the device."""
    while (n := terms.shape[-1]) > 1:
        high = terms[..., (n + 1) // 2 :]
        terms = terms[..., : (n + 1) // 2].clone()
        terms[..., : n // 2] += high
    return terms[..., 0]
