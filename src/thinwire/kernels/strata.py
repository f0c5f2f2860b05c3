"""Random sparse places that all ranks draw alike: one in each of k strata.

Stratum j of n elements is ``[⌊j n / k⌋, ⌊(j + 1) n / k⌋)``, and its place is uniform in it, so an element's probability
is one over its stratum's length L (to a relative 2⁻³² L). The k places are distinct and ascending, and drawn in O(k).
This is not a uniform subset of k: no two places are in one stratum. What a single element sees is the same.
"""

from torch import Tensor

from thinwire.kernels.cpu import strata as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.reference import strata as reference


def strata_take(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    values: Tensor,
    *,
    key: int,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Take ``weight * q`` at the places, ``q = grad + error_scale * error``; keep ``new_error = q``, and 0 there.

    Args:
        grad: 1-D, any float dtype and stride; computed in float32. Not changed.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten. May be ``error`` itself, or None.
        values: float32 ``[k]``, contiguous, k ≤ n; overwritten. If any element of ``q``, taken or not, is Inf or NaN,
            the first value is NaN.
        key: 64 bits that choose the places.
        error_scale: factor on ``error``.
        weight: factor on the values, and not on the error.

    Raises:
        ValueError: if a shape does not fit ``grad``.
    """
    grad = as_float32(grad)
    numel = grad.numel()
    _expect_strata(values, numel)
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, numel)
    if new_error is not None:
        expect_shape("new_error", new_error, numel)
    if numel:
        run = pick(grad.device, cpu=cpu.take, reference=reference.take)
        run(grad, error, new_error, values, key, error_scale, weight)


def strata_put_(out: Tensor, values: Tensor, *, key: int, scaled: bool = False, clear: bool = False) -> None:
    """Write the sum over rows of ``values`` to the places that :func:`strata_take` took them from.

    Args:
        out: float32 ``[n]``, contiguous; overwritten at the places, and elsewhere only as ``clear`` says.
        values: float32 ``[m, k]``, rows contiguous, any stride between them; m ≥ 1, k ≤ n. Rows are added in order.
        key: as they were taken with.
        scaled: multiply each value by its stratum's length, one over its probability.
        clear: set all other elements to 0, in the same pass.

    Raises:
        ValueError: if there are more values in a row than elements, or none for some.
    """
    _expect_strata(values[0], out.numel())
    if out.numel():
        run = pick(out.device, cpu=cpu.put, reference=reference.put)
        run(out, values, key, scaled, clear)


def _expect_strata(values: Tensor, numel: int) -> None:
    if values.dim() != 1 or not min(numel, 1) <= values.numel() <= numel:
        raise ValueError(f"values has shape {tuple(values.shape)}; {numel} elements have 1 to {numel} strata")
