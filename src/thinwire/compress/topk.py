"""The elements of largest magnitude, with their indices."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key, num_selected
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, topk_decode_sum, topk_encode

_VALUE_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
_INT32_MAX = torch.iinfo(torch.int32).max


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class TopK(Compressor):
    """The ``ratio`` of the elements that are largest, and zero for the rest; use it with error feedback.

    Payload: the indices, ascending, as int32 (int64 for vectors whose indices need it), then the values. A value beyond
    the range of fp16 is sent as ±65504, and the rest of it stays in the error.

    Source: top-k of BytePS-Compress (arXiv 2105.07829).
    """

    id: ClassVar[str] = "topk"

    ratio: float = 0.01
    """Share of the elements that is sent, rounded half up to a number of elements, at least one."""
    values: str = "fp16"
    """What values are sent as: fp16 or fp32."""

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, float | int) or not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is a number above 0 and at most 1, not {self.ratio!r}")
        object.__setattr__(self, "ratio", float(self.ratio))  # 1 is 1.0, also in the name
        if self.values not in tuple(_VALUE_DTYPES):  # a tuple, so that unhashable settings get the message too
            raise ValueError(f"values is one of {', '.join(_VALUE_DTYPES)}, not {self.values!r}")

    def num_values(self, numel: int) -> int:
        """How many elements of a vector of ``numel`` are sent."""
        return num_selected(self.ratio, numel)

    def indices(self, payload: Tensor, numel: int) -> Tensor:
        """Which of ``numel`` elements a payload sends, as int64, ascending."""
        dtype = _index_dtype(numel)
        return payload[: self.num_values(numel) * dtype.itemsize].view(dtype).long()

    def payload_nbytes(self, numel: int) -> int:
        return self.num_values(numel) * (_index_dtype(numel).itemsize + _VALUE_DTYPES[self.values].itemsize)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        self._encode(x, None, None, payload, 1.0, weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        topk_decode_sum(payloads, out, index_dtype=_index_dtype(out.numel()), value_dtype=_VALUE_DTYPES[self.values])

    def is_finite(self, payloads: Tensor) -> bool:
        nbytes, value_dtype = payloads.shape[-1], _VALUE_DTYPES[self.values]
        # The size tells the index type: no vector that int32 can index has a payload as large as one that it cannot.
        index_dtype = torch.int32 if nbytes <= self.payload_nbytes(_INT32_MAX) else torch.int64
        first_value = nbytes // (index_dtype.itemsize + value_dtype.itemsize) * index_dtype.itemsize
        return all_finite(payloads, first_value, nbytes, value_dtype)

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
        self._encode(grad, error, new_error, payload, error_scale, weight)

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
        topk_encode(
            grad,
            error,
            new_error,
            payload,
            index_dtype=_index_dtype(grad.numel()),
            value_dtype=_VALUE_DTYPES[self.values],
            threshold=threshold,
            error_scale=error_scale,
            weight=weight,
        )


def _index_dtype(numel: int) -> torch.dtype:
    return torch.int32 if numel <= _INT32_MAX else torch.int64
