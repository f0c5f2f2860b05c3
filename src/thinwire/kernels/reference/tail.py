"""Threshold estimation in plain torch; contracts in :mod:`thinwire.kernels.tail`."""

import math

from torch import Tensor

MOST_STAGES = 30


def threshold(x: Tensor, k: int, stages: int) -> float:
    magnitudes = x.abs()
    if not magnitudes.isfinite().all():
        return 0.0
    first = k / x.numel() if stages == 1 else max(0.25, k / x.numel())
    rest = (k / x.numel() / first) ** (1 / max(stages - 1, 1))
    above, reached = magnitudes, 0.0
    for stage in range(stages or MOST_STAGES):
        count = above.numel()
        if count == 0 or (stages == 0 and count <= 1.2 * k):
            break
        share = max(0.25, k / count) if stages == 0 else first if stage == 0 else rest
        excess = float(above.double().sum()) / count - reached
        reached = float(x.new_tensor(reached - excess * math.log(share)))  # rounded to float32
        above = above[above >= reached]
    return reached if above.numel() else float(magnitudes.max())
