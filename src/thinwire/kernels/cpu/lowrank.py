"""Low-rank factors with numba; contracts in :mod:`thinwire.kernels.lowrank`.

A few rows of the matrix are taken together, and four rows of a factor, so that neither is read from memory, nor the
factor from the L2 cache, more often than it must be.
"""

import math

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.load import load

BLOCK = 4096  # elements of the matrix that stay in the L1 cache
WIDTH = 1024  # elements of a row; four rows of a factor are in the L1 cache then too
DEPENDENT = 1e-6  # a row of which less is left had no direction of its own: float32 rounds at 6e-8
SETTLED = 0.99  # a pass after which more of the row is left found nothing to take but rounding


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
    vectors = (None if x is None else x.numpy() for x in (grad, error, new_error))
    _left(*vectors, basis.numpy(), left.numpy(), np.float32(error_scale), np.float32(weight))


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
    vectors = (None if x is None else x.numpy() for x in (grad, error, new_error))
    _right(*vectors, basis.numpy(), right.numpy(), np.float32(error_scale), np.float32(weight))


def expand(left: Tensor, right: Tensor, out: Tensor) -> None:
    _expand(left.numpy(), right.numpy(), out.numpy())


def orthonormalise_(rows: Tensor) -> None:
    _orthonormalise(rows.numpy())


@compiled
def _left(grad, error, new_error, basis, left, error_scale, weight):  # type: ignore[no-untyped-def]
    rank, m = basis.shape
    n = left.shape[1]
    step = _rows_at_once(m)
    tile = np.empty(step * m, np.float32)
    found = np.empty((step, rank), np.float32)
    for begin in range(0, n, step):
        end = min(begin + step, n)
        q = _load(grad, error, new_error, error_scale, tile, begin * m, end * m).reshape((end - begin, m))
        part = found[: end - begin]
        _dots(basis, q, part)
        for k in range(rank):
            for i in range(end - begin):
                left[k, begin + i] = weight * part[i, k]
                part[i, k] = -part[i, k]
        if new_error is not None:
            _add_product(part, basis, q)


@compiled
def _right(grad, error, new_error, basis, right, error_scale, weight):  # type: ignore[no-untyped-def]
    m = right.shape[1]
    n = basis.shape[1]
    step = _rows_at_once(m)
    tile = np.empty(step * m, np.float32)
    right[:] = 0
    for begin in range(0, n, step):
        end = min(begin + step, n)
        q = _load(grad, error, new_error, error_scale, tile, begin * m, end * m).reshape((end - begin, m))
        _add_product(basis[:, begin:end], q, right)
    if new_error is not None:
        minus = -basis.T
        # Backwards: what was written last is still in the cache.
        for begin in range((n - 1) // step * step, -1, -step):
            end = min(begin + step, n)
            _add_product(minus[begin:end], right, new_error[begin * m : end * m].reshape((end - begin, m)))
    if weight != 1:
        for k in range(right.shape[0]):
            right[k] *= weight


@compiled
def _expand(left, right, out):  # type: ignore[no-untyped-def]
    n, m = left.shape[1], right.shape[1]
    step = _rows_at_once(m)
    for begin in range(0, n, step):
        end = min(begin + step, n)
        part = out[begin * m : end * m]
        part[:] = 0
        _add_product(left.T[begin:end], right, part.reshape((end - begin, m)))


@compiled
def _rows_at_once(m):  # type: ignore[no-untyped-def]
    return max(4, BLOCK // max(m, 1))


@compiled
def _load(grad, error, new_error, error_scale, tile, begin, end):  # type: ignore[no-untyped-def]
    """A part of ``q``: in its place in ``new_error``, or, where none is kept, in ``grad`` or the tile."""
    if new_error is not None:
        q = new_error[begin:end]
        load(grad[begin:end], None if error is None else error[begin:end], error_scale, q)
    elif error is not None:
        q = tile[: end - begin]
        load(grad[begin:end], error[begin:end], error_scale, q)
    else:
        q = grad[begin:end]
    return q


@compiled(fastmath={"reassoc", "contract"})  # so that LLVM vectorises the sums
def _dots(rows, q, out):  # type: ignore[no-untyped-def]
    """Write ``out = q @ rowsᵀ``."""
    fours = rows.shape[0] & ~3
    out[:] = 0
    for begin in range(0, rows.shape[1], WIDTH):
        end = min(begin + WIDTH, rows.shape[1])
        for k in range(0, fours, 4):
            row_0, row_1, row_2, row_3 = (
                rows[k, begin:end],
                rows[k + 1, begin:end],
                rows[k + 2, begin:end],
                rows[k + 3, begin:end],
            )
            for i in range(q.shape[0]):
                x = q[i, begin:end]
                sum_0 = sum_1 = sum_2 = sum_3 = np.float32(0)
                for j in range(x.size):
                    sum_0 += row_0[j] * x[j]
                    sum_1 += row_1[j] * x[j]
                    sum_2 += row_2[j] * x[j]
                    sum_3 += row_3[j] * x[j]
                out[i, k] += sum_0
                out[i, k + 1] += sum_1
                out[i, k + 2] += sum_2
                out[i, k + 3] += sum_3
        for k in range(fours, rows.shape[0]):
            row = rows[k, begin:end]
            for i in range(q.shape[0]):
                x = q[i, begin:end]
                total = np.float32(0)
                for j in range(x.size):
                    total += row[j] * x[j]
                out[i, k] += total


@compiled
def _add_product(factors, rows, out):  # type: ignore[no-untyped-def]
    """``out += factors @ rows``, terms in order, every product and sum rounded."""
    fours = rows.shape[0] & ~3
    for begin in range(0, rows.shape[1], WIDTH):
        end = min(begin + WIDTH, rows.shape[1])
        for k in range(0, fours, 4):
            row_0, row_1, row_2, row_3 = (
                rows[k, begin:end],
                rows[k + 1, begin:end],
                rows[k + 2, begin:end],
                rows[k + 3, begin:end],
            )
            for i in range(out.shape[0]):
                total = out[i, begin:end]
                f_0, f_1, f_2, f_3 = factors[i, k], factors[i, k + 1], factors[i, k + 2], factors[i, k + 3]
                for j in range(total.size):
                    total[j] = total[j] + f_0 * row_0[j] + f_1 * row_1[j] + f_2 * row_2[j] + f_3 * row_3[j]
        for k in range(fours, rows.shape[0]):
            row = rows[k, begin:end]
            for i in range(out.shape[0]):
                total, f = out[i, begin:end], factors[i, k]
                for j in range(total.size):
                    total[j] += f * row[j]


@compiled
def _orthonormalise(rows):  # type: ignore[no-untyped-def]
    count, width = rows.shape
    basis = np.empty((count, width))
    scratch = np.empty(width)
    for i in range(count):
        for j in range(width):
            basis[i, j] = rows[i, j]
        # Squares of float32 do not overflow in float64, nor vanish.
        if not math.isfinite(_dot(basis[i], basis[i], scratch)):
            rows[:] = np.nan
            return
    for i in range(count):
        row, found = basis[i], basis[:i]
        norm = _take_(found, row, scratch)
        if norm == 0:
            axis = _free_axis(found, width)
            row[:] = 0
            row[axis] = 1
            norm = _take_(found, row, scratch)
        for j in range(width):
            row[j] /= norm
            rows[i, j] = row[j]


@compiled
def _take_(found, row, scratch):  # type: ignore[no-untyped-def]
    """Take from a row what lies along orthonormal ones; the norm of what is left, 0 where that is rounding."""
    factors = np.empty((1, found.shape[0]))
    norm = math.sqrt(_dot(row, row, scratch))
    enough = DEPENDENT * norm
    before = math.inf if found.shape[0] else norm
    while enough < norm < SETTLED * before:
        for k in range(factors.shape[1]):
            factors[0, k] = -_dot(row, found[k], scratch)
        _add_product(factors, found, row.reshape((1, row.size)))
        before = norm
        norm = math.sqrt(_dot(row, row, scratch))
    return norm if norm > enough else 0.0


@compiled
def _free_axis(found, width):  # type: ignore[no-untyped-def]
    """The first axis of which orthonormal rows leave half of what they leave of all axes on average, or more."""
    count = found.shape[0]
    enough = 0.5 * (width - count) / width
    for j in range(width):
        rest = 1.0
        for k in range(count):
            rest -= found[k, j] * found[k, j]
        if rest >= enough:
            return j
    return 0  # there is one: the average of the axes is twice as much


@compiled
def _dot(x, y, scratch):  # type: ignore[no-untyped-def]
    """Products, then halves of them added up over and over: a fixed order that LLVM vectorises as it stands."""
    n = x.size
    for j in range(n):
        scratch[j] = x[j] * y[j]
    while n > 1:
        half = (n + 1) >> 1
        low, high = scratch[:half], scratch[half:n]
        for j in range(high.size):
            low[j] += high[j]
        n = half
    return scratch[0]
