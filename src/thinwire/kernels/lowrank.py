"""Low-rank factors of a matrix: projections on an orthonormal basis, their product, and making a basis orthonormal.

A matrix M ``[n, m]`` is handed over flat, row by row. Factors are stored with one contiguous row for each of the ``r``
terms: ``left [r, n]`` and ``right [r, m]`` stand for ``leftᵀ @ right``.
"""

from collections.abc import Callable

from torch import Tensor

from thinwire.kernels.cpu import lowrank as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.reference import lowrank as reference


def lowrank_left(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    basis: Tensor,
    left: Tensor,
    *,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Project the rows of ``Q = grad + error_scale * error``: ``left = weight * basis @ Qᵀ``. Keep the rest of ``Q``.

    Args:
        grad: ``[n·m]``, any float dtype and stride; computed in float32. Not changed.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten with ``Q - (basis @ Qᵀ)ᵀ @ basis``. May be ``error``
            itself, or None. With non-finite input it receives garbage.
        basis: float32 ``[r, m]``, contiguous, its rows orthonormal: see :func:`orthonormalise_`.
        left: float32 ``[r, n]``, contiguous; overwritten. An Inf or NaN in row i of ``Q`` makes all of column i
            non-finite; finite elements do so only where a projection overflows.
        error_scale: factor on ``error``.
        weight: factor on ``left``, and not on the error.

    Raises:
        ValueError: if shapes do not fit each other.

    Source: ACP-SGD (arXiv 2306.08881), whose P = (M + E) Q this is, transposed.
    """
    n, m = _width("left", left), _width("basis", basis)
    run = pick(grad.device, cpu=cpu.left, reference=reference.left)
    _project(run, grad, error, new_error, basis, "left", left, n, m, error_scale, weight)


def lowrank_right(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    basis: Tensor,
    right: Tensor,
    *,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Project the columns of ``Q = grad + error_scale * error``: ``right = weight * basis @ Q``. Keep the rest of it.

    Args:
        grad: as for :func:`lowrank_left`.
        error: likewise.
        new_error: likewise; overwritten with ``Q - basisᵀ @ (basis @ Q)``.
        basis: float32 ``[r, n]``, contiguous, its rows orthonormal.
        right: float32 ``[r, m]``, contiguous; overwritten. An Inf or NaN in column j of ``Q`` makes all of column j
            non-finite; finite elements do so only where a projection overflows.
        error_scale: factor on ``error``.
        weight: factor on ``right``, and not on the error.

    Raises:
        ValueError: if shapes do not fit each other.

    Source: ACP-SGD (arXiv 2306.08881), whose Q = (M + E)ᵀ P this is, transposed.
    """
    n, m = _width("basis", basis), _width("right", right)
    run = pick(grad.device, cpu=cpu.right, reference=reference.right)
    _project(run, grad, error, new_error, basis, "right", right, n, m, error_scale, weight)


def lowrank_expand(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write ``out = leftᵀ @ right``: the same bits on every device and with any number of threads.

    Args:
        left: float32 ``[r, n]``, contiguous.
        right: float32 ``[r, m]``, contiguous.
        out: float32 ``[n·m]``, contiguous; overwritten. Terms are added to zero in order, each product and sum rounded.

    Raises:
        ValueError: if shapes do not fit each other.
    """
    n, m = _width("left", left), _width("right", right)
    expect_shape("right", right, left.shape[0], m)
    expect_shape("out", out, n * m)
    run = pick(out.device, cpu=cpu.expand, reference=reference.expand)
    run(left, right, out)


def orthonormalise_(rows: Tensor) -> None:
    """Make rows orthonormal in place, to 1e-5 in every inner product, whatever finite numbers they hold.

    Row i becomes the unit vector along what the rows before it leave of it, so its inner product with what it was is
    positive. A row of which they leave less than a millionth (float32 rounds at 6e-8) has no direction of its own: what
    they leave of an axis takes its place, the first of which they leave enough. The first i rows span, to rounding, all
    that they spanned before.

    Args:
        rows: float32 ``[r, k]``, contiguous, r ≤ k; overwritten, with the same bits on every device. All NaN if any
            element is not finite.

    Raises:
        ValueError: if there are more rows than they are long.

    Source: Gram-Schmidt, repeated for a row until nothing is left to take from it, in float64; that repeating suffices:
        Giraud, Langou, Rozložník, van den Eshof, Numerische Mathematik 101 (2005).
    """
    k = _width("rows", rows)
    if rows.shape[0] > k:
        raise ValueError(f"rows has shape {tuple(rows.shape)}; no more rows than they are long can be orthonormal")
    if rows.numel():
        run = pick(rows.device, cpu=cpu.orthonormalise_, reference=reference.orthonormalise_)
        run(rows)


Projection = Callable[[Tensor, Tensor | None, Tensor | None, Tensor, Tensor, int, int, float, float], None]


def _project(
    run: Projection,
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    basis: Tensor,
    name: str,
    factor: Tensor,
    n: int,
    m: int,
    error_scale: float,
    weight: float,
) -> None:
    grad = as_float32(grad)
    expect_shape("grad", grad, n * m)
    expect_shape(name, factor, basis.shape[0], factor.shape[1])
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, n * m)
    if new_error is not None:
        expect_shape("new_error", new_error, n * m)
    run(grad, error, new_error, basis, factor, n, m, error_scale, weight)


def _width(name: str, rows: Tensor) -> int:
    if rows.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}; it must have two dimensions")
    return rows.shape[1]
