"""SIDCo: the elements above a threshold that is estimated, not sought."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.registry import register
from thinwire.compress.topk import TopK
from thinwire.kernels import tail_threshold


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class SIDCo(TopK):
    """The elements that reach a threshold estimated to be that of the ``ratio`` largest; use it with error feedback.

    The threshold comes from fitting exponential distributions to the tail. If more elements reach it than have room,
    the largest are sent, since the first ones in order would keep the last ones waiting; if fewer, they alone are.

    Payload: that of topk. Places left over repeat the last index, with value 0.

    Source: SIDCo (Abdelmoniem et al., arXiv 2101.10761). There the number of stages adapts from step to step; a
    compressor has no memory, so here each stage counts what is left, within a step.
    """

    id: ClassVar[str] = "sidco"

    stages: int = 0
    """How many distributions are fitted, one to the tail of the other; 0: until at most 1.2 times the ratio is left."""

    def __post_init__(self) -> None:
        TopK.__post_init__(self)
        if type(self.stages) is not int or not 0 <= self.stages <= 20:
            raise ValueError(f"stages is an integer from 0 (as many as needed) to 20, not {self.stages!r}")

    def _encode(
        self,
        grad: Tensor,
        error: Tensor | None,
        new_error: Tensor | None,
        payload: Tensor,
        error_scale: float,
        weight: float,
        threshold: float | None = None,
    ) -> None:
        if error is not None and new_error is not None:
            grad = torch.add(grad, error, alpha=error_scale, out=new_error)
        if grad.numel():
            threshold = tail_threshold(grad, self.num_values(grad.numel()), stages=self.stages)
        TopK._encode(self, grad, None, new_error, payload, 1.0, weight, threshold)
