"""Stratified random places with numba; contracts in :mod:`thinwire.kernels.strata`."""

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.load import load
from thinwire.kernels.cpu.peak import INFINITY, peak_bits
from thinwire.kernels.cpu.random import random_tile
from thinwire.kernels.cpu.rows import flat_rows

TILE = 256  # strata; their random numbers are made together


def take(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    values: Tensor,
    key: int,
    error_scale: float,
    weight: float,
) -> None:
    _take(
        grad.numpy(),
        None if error is None else error.numpy(),
        None if new_error is None else new_error.numpy(),
        values.numpy(),
        np.uint64(key),
        np.float32(error_scale),
        np.float32(weight),
    )


def put(out: Tensor, values: Tensor, key: int, scaled: bool, clear: bool) -> None:
    flat, stride = flat_rows(values)
    rows, k = values.shape
    _put(out.numpy(), flat, stride, rows, k, np.uint64(key), scaled, clear)


@compiled
def _draw(tile, n, k, key, random, places, lengths):  # type: ignore[no-untyped-def]
    """Write the places and lengths of a tile's strata, and return their number."""
    first = TILE * tile
    count = min(TILE, k - first)
    random_tile(tile, key, random)
    # Every stratum begins where the last one ended, so one division does for all.
    length, rest = n // k, n % k
    begin, surplus = first * n // k, first * n % k
    for j in range(count):
        surplus += rest
        longer = surplus >= k
        surplus -= k if longer else 0
        lengths[j] = length + longer
        places[j] = begin + (np.int64(random[j]) * lengths[j] >> 32)
        begin += lengths[j]
    return count


@compiled
def _take(grad, error, new_error, values, key, error_scale, weight):  # type: ignore[no-untyped-def]
    n, k = grad.size, values.size
    random = np.empty(TILE, np.uint32)
    places, lengths = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    peak = np.int32(0)
    for t in range((k + TILE - 1) // TILE):
        begin, end = TILE * t * n // k, min(TILE * (t + 1), k) * n // k
        errors = None if error is None else error[begin:end]
        peak = max(peak, peak_bits(grad[begin:end], errors, error_scale))
        count = _draw(t, n, k, key, random, places, lengths)
        part = values[TILE * t : TILE * t + count]
        for j in range(count):
            q = grad[places[j]]
            if error is not None:
                q += error_scale * error[places[j]]
            part[j] = weight * q
        if new_error is not None:
            load(grad[begin:end], errors, error_scale, new_error[begin:end])
            for j in range(count):
                new_error[places[j]] = 0
    if peak >= INFINITY:
        values[0] = np.nan


@compiled
def _put(out, flat, stride, rows, k, key, scaled, clear):  # type: ignore[no-untyped-def]
    n = out.size
    random = np.empty(TILE, np.uint32)
    places, lengths = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    for t in range((k + TILE - 1) // TILE):
        if clear:
            out[TILE * t * n // k : min(TILE * (t + 1), k) * n // k] = 0
        count = _draw(t, n, k, key, random, places, lengths)
        for j in range(count):
            out[places[j]] = 0
        for r in range(rows):
            part = flat[r * stride + TILE * t : r * stride + TILE * t + count]
            for j in range(count):
                out[places[j]] += part[j] * np.float32(lengths[j]) if scaled else part[j]
