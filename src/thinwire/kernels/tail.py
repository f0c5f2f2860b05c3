"""A threshold that about k elements reach, estimated by fitting exponential distributions to the tail of magnitudes."""

from torch import Tensor

from thinwire.kernels.cpu import tail as cpu
from thinwire.kernels.dispatch import pick
from thinwire.kernels.reference import tail as reference


def tail_threshold(x: Tensor, k: int, *, stages: int = 0) -> float:
    """Estimate a threshold that about ``k`` of the magnitudes reach; at least one does.

    What lies above a threshold is taken to be exponentially distributed, so that a share s of it lies above
    ``threshold - mean excess * log(s)``: the threshold of the next stage. The first threshold is 0.

    Args:
        x: float32, 1-D, contiguous, not empty. With an Inf or NaN in it, the threshold is 0.
        k: from 1 to the number of elements.
        stages: how many. The first one's share is 1/4 (that of k, if it is the only one, or larger), and all others
            have equal shares of the rest. 0: each counts what is left, until that is at most 1.2 k; their share is what
            remains to be shared, at least 1/4.

    Raises:
        ValueError: if ``k`` or ``stages`` is out of range.

    Source: SIDCo (arXiv 2101.10761), multi-stage fitting with exponential distributions.
    """
    if not 1 <= k <= x.numel():
        raise ValueError(f"k is {k}; it must be from 1 to the number of elements, {x.numel()}")
    if stages < 0:
        raise ValueError(f"stages is {stages}; it must be 0 (as many as needed) or positive")
    run = pick(x.device, cpu=cpu.threshold, reference=reference.threshold)
    return run(x, k, stages)
