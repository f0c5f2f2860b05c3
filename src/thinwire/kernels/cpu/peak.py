"""The largest magnitude of a block of ``grad + error_scale * error``, and the sum of its squares."""

import numpy as np

from thinwire.kernels.cpu.compiled import compiled

MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)


@compiled
def peak_bits(grad, error, error_scale):  # type: ignore[no-untyped-def]
    """The bits of the largest ``|q|``, as an integer.

    Magnitudes order like their bits, with Inf above all numbers and NaN above Inf; and unlike the maximum of floats,
    that of integers is vectorised.
    """
    peak = np.int32(0)
    if error is None:
        bits = grad.view(np.int32)
        for i in range(bits.size):
            peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    else:
        for i in range(grad.size):
            q = np.float32(grad[i] + error_scale * error[i])
            peak = max(peak, np.int32(q.view(np.int32) & MAGNITUDE))
    return peak


@compiled(fastmath={"reassoc"})  # so that LLVM vectorises the sum
def sum_squares(grad, error, error_scale):  # type: ignore[no-untyped-def]
    """The sum of ``q²`` in float64, in which squares of float32 are exact and no sum of theirs overflows."""
    total = 0.0
    if error is None:
        for i in range(grad.size):
            total += np.float64(grad[i]) * np.float64(grad[i])
    else:
        for i in range(grad.size):
            q = np.float64(np.float32(grad[i] + error_scale * error[i]))
            total += q * q
    return total
