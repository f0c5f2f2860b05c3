"""Deep Gradient Compression: top-k of velocities instead of gradients, so that what is sent late has its momentum."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Codec, Key, Method, State
from thinwire.compress.registry import register
from thinwire.compress.topk import TopK

WARM_UP_RATIOS = (0.25, 0.0625, 0.015625, 0.004)
"""Of the quarters of the warm-up: three quarters fewer elements each time, as in the paper."""


class Velocity(State):
    """The velocity of one region, in the unit of its error: both are written in the same steps."""

    def __init__(self, numel: int) -> None:
        self._current, self._spare = torch.zeros(numel), torch.empty(numel)
        self._pending = False

    def accumulate(self, grad: Tensor, momentum: float) -> Tensor:
        """``momentum * velocity + grad``, held until it is committed; an alias."""
        torch.mul(self._current, momentum, out=self._spare).add_(grad)
        self._pending = True
        return self._spare

    def commit(self) -> None:
        if self._pending:
            self._current, self._spare = self._spare, self._current
            self._pending = False

    def rollback(self) -> None:
        self._pending = False

    def save(self) -> Mapping[str, Tensor]:
        return {"velocity": self._current}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        self._current.copy_(saved["velocity"])
        self._pending = False


class _VelocityCodec(Codec):
    """Sends the largest elements of what velocities add up to, and stops the velocity of what it sends."""

    __slots__ = ("_clip", "_momentum", "_topk", "_velocity")

    def __init__(self, topk: TopK, velocity: Velocity, momentum: float, clip: float) -> None:
        self._topk, self._velocity, self._momentum, self._clip = topk, velocity, momentum, clip

    def payload_nbytes(self, numel: int) -> int:
        return self._topk.payload_nbytes(numel)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        self._topk.encode(x, payload, key, weight=weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        self._topk.decode(payloads, out, key)

    def is_finite(self, payloads: Tensor) -> bool:
        return self._topk.is_finite(payloads)

    def encode_with_error(
        self,
        grad: Tensor,
        error: Tensor,
        new_error: Tensor,
        payload: Tensor,
        key: Key,
        *,
        weight: float = 1.0,
        error_scale: float = 1.0,
    ) -> None:
        if self._clip:
            grad = _clipped(grad, self._clip * math.sqrt(weight))  # workers' weight is 1/n
        velocity = self._velocity.accumulate(grad, self._momentum * error_scale)
        self._topk.encode_with_error(velocity, error, new_error, payload, key, weight=weight, error_scale=error_scale)
        velocity.index_fill_(0, self._topk.indices(payload, grad.numel()), 0.0)


def _clipped(grad: Tensor, limit: float) -> Tensor:
    norm = float(torch.linalg.vector_norm(grad, dtype=torch.float64))
    return grad if norm <= limit else grad * (limit / norm)  # of Inf and NaN there is a NaN left


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class DGC(Method):
    """Top-k of ``v``, where ``u = momentum * u + gradient`` and ``v = v + u``; the optimizer is SGD *without* momentum.

    Both are each worker's own. What is sent is taken out of v, which is the error memory, and u starts anew there
    (momentum factor masking). Where the gradient is zero everywhere, as of a parameter that the step did not use, both
    stay as they are. With ``scaler=`` or ``optimizer=`` the velocity follows the scale as errors do.

    Only what is compressed has momentum, and from the first compressed step on: give the other parameters (vectors,
    small matrices; ``sync.strategy`` tells) an optimizer's group with momentum, and use ``warmup_steps`` instead of
    ``start_step=``. A server of the two-way scheme compresses by plain top-k with error feedback.

    Costs two float32 copies of the compressed parameters beside those of the errors. Payload: that of topk.

    Source: Deep Gradient Compression (Lin et al., arXiv 1712.01887), section 3.
    """

    id: ClassVar[str] = "dgc"
    schemes: ClassVar[tuple[str, ...]] = ("allgather", "alltoall")

    ratio: float = 0.001
    """Share of the elements that is sent after the warm-up, rounded half up to a number of elements, at least one."""
    momentum: float = 0.9
    """Of the velocity: at least 0 and below 1."""
    clip: float = 0.0
    """Scale a region's gradient (all of it, or a chunk of a large one) down to a Euclidean norm of clip/√n on each of n
    workers, before it is added to the velocity; a loss scale counts in. 0: off."""
    warmup_steps: int = 0
    """For a quarter of so many steps each the ratio is 0.25, 0.0625, 0.015625 and 0.004, where it is not above that."""
    values: str = "fp16"
    """What values are sent as: fp16 or fp32."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", TopK(ratio=self.ratio, values=self.values).ratio)  # checks both
        for name, allowed, limit in (("momentum", "from 0 and below 1", 1.0), ("clip", "from 0 (off)", math.inf)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < limit:
                raise ValueError(f"{name} is a finite number {allowed}, not {value!r}")
            object.__setattr__(self, name, float(value))  # 0 is 0.0, also in the name
        if type(self.warmup_steps) is not int or self.warmup_steps < 0:
            raise ValueError(f"warmup_steps is a whole number from 0, not {self.warmup_steps!r}")

    @property
    def reducible(self) -> bool:
        return False

    @property
    def needs_errors(self) -> bool:
        return True

    def average_nbytes(self, shape: Sequence[int]) -> float:
        return self._topk(len(WARM_UP_RATIOS)).payload_nbytes(math.prod(shape))

    def phase(self, step: int) -> int:
        num_quarters = len(WARM_UP_RATIOS)
        return num_quarters if step >= self.warmup_steps else num_quarters * step // self.warmup_steps

    def new_state(self, shape: Sequence[int], key: Key) -> Velocity:
        return Velocity(math.prod(shape))

    def codec(self, phase: int, state: State | None) -> Codec:
        topk = self._topk(phase)
        return _VelocityCodec(topk, state, self.momentum, self.clip) if isinstance(state, Velocity) else topk

    def _topk(self, phase: int) -> TopK:
        ratio = max(self.ratio, (*WARM_UP_RATIOS, 0.0)[phase])
        return TopK(ratio=ratio, values=self.values)
