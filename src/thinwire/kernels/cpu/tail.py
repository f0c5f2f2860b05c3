"""Threshold estimation with numba; contracts in :mod:`thinwire.kernels.tail`."""

import math

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.peak import peak_bits

MOST_STAGES = 30


def threshold(x: Tensor, k: int, stages: int) -> float:
    return float(_threshold(x.numpy(), k, stages))


@compiled
def _threshold(x, k, stages):  # type: ignore[no-untyped-def]
    reached = np.float32(0)
    count, total = _tail(x, reached)
    if not math.isfinite(total):
        return reached
    first = k / x.size if stages == 1 else max(0.25, k / x.size)
    rest = (k / x.size / first) ** (1 / max(stages - 1, 1))
    for stage in range(stages or MOST_STAGES):
        if count == 0 or (stages == 0 and count <= 1.2 * k):
            break
        if stages == 0:
            share = max(0.25, k / count)
        else:
            share = first if stage == 0 else rest
        reached = np.float32(reached - (total / count - reached) * math.log(share))
        count, total = _tail(x, reached)
    return reached if count else np.int32(peak_bits(x, None, np.float32(0))).view(np.float32)


@compiled(fastmath={"reassoc"})  # so that LLVM vectorises the sums
def _tail(x, threshold):  # type: ignore[no-untyped-def]
    """How many magnitudes are not below the threshold (NaN is not), and their sum."""
    count, total = 0, 0.0
    for i in range(x.size):
        magnitude = abs(x[i])
        below = magnitude < threshold
        count += 0 if below else 1
        total += 0.0 if below else np.float64(magnitude)
    return count, total
