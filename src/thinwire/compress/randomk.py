"""Random-k: values at places that all ranks draw alike, so that only values travel and payloads can be added."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key, num_selected, payload_part
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, strata_put_, strata_take

_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class RandomK(Compressor):
    """A random ``ratio`` of the elements, one in each of equally long strata, as they are; others are 0.

    Use it with error feedback, or with ``scaled``: then what is decoded is divided by the element's probability to be
    drawn, which makes it unbiased.

    Payload: the values, in the order of their places. Beyond fp16's range they become Inf,
    visibly; so do their sums.

    Source: random-k of BytePS-Compress (arXiv 2105.07829). There the places are a uniform subset; strata keep each
    element's probability, and draw places in O(k), distinct and in the order of memory.
    """

    id: ClassVar[str] = "randomk"

    ratio: float = 0.03125
    """The part of the elements that travels: above 0, at most 1; of any vector at least one element."""
    values: str = "fp32"
    """fp32 or fp16."""
    scaled: bool = False
    """Whether decoded values are scaled up, to be right on average."""

    def __post_init__(self) -> None:
        if type(self.ratio) not in (int, float) or not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is a number above 0 and at most 1, not {self.ratio!r}")
        object.__setattr__(self, "ratio", float(self.ratio))  # 1 is 1.0, also in the name
        if self.values not in _DTYPES:
            raise ValueError(f"values is one of {', '.join(_DTYPES)}, not {self.values!r}")
        if type(self.scaled) is not bool:
            raise ValueError(f"scaled is true or false, not {self.scaled!r}")

    @property
    def sum_dtype(self) -> torch.dtype:
        return _DTYPES[self.values]

    @property
    def unbiased(self) -> bool:
        return self.scaled

    @property
    def expands(self) -> bool:
        return self.scaled

    def payload_nbytes(self, numel: int) -> int:
        return self.sum_dtype.itemsize * self.num_values(numel)

    def num_values(self, numel: int) -> int:
        """How many elements of a vector of ``numel`` travel."""
        return num_selected(self.ratio, numel)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        self._take(x, None, None, payload, key, 1.0, weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        rows = payload_part(payloads, 0, payloads.shape[1], self.sum_dtype).float()
        strata_put_(out, rows, key=key.shared(), scaled=self.scaled, clear=True)

    def is_finite(self, payloads: Tensor) -> bool:
        return all_finite(payloads, 0, payloads.shape[1], self.sum_dtype)

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
        if self.scaled:  # rarely of use, for what is unbiased needs no error feedback
            Compressor.encode_with_error(
                self, grad, error, new_error, payload, key, weight=weight, error_scale=error_scale
            )
            return
        values = self._take(grad, error, new_error, payload, key, error_scale, weight)
        if self.values == "fp16":
            dropped = (values - payload.view(torch.float16)) / weight
            strata_put_(new_error, dropped.unsqueeze(0), key=key.shared())

    def _take(
        self,
        grad: Tensor,
        error: Tensor | None,
        new_error: Tensor | None,
        payload: Tensor,
        key: Key,
        error_scale: float,
        weight: float,
    ) -> Tensor:
        """Write the payload; return its values before they were rounded."""
        stored = payload.view(self.sum_dtype)
        values = stored if self.values == "fp32" else torch.empty_like(stored, dtype=torch.float32)
        strata_take(grad, error, new_error, values, key=key.shared(), error_scale=error_scale, weight=weight)
        if self.values == "fp16":
            stored.copy_(values)
        return values
