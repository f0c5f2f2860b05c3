"""Half-precision casts: two bytes an element, summable as they are."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key
from thinwire.compress.registry import register
from thinwire.kernels import all_finite


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cast(Compressor):
    """Each element rounded to nearest in ``dtype``; beyond its range it becomes Inf, visibly."""

    dtype: ClassVar[torch.dtype]

    @property
    def sum_dtype(self) -> torch.dtype:
        return self.dtype

    def payload_nbytes(self, numel: int) -> int:
        return numel * self.dtype.itemsize

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        torch.mul(x, weight, out=payload.view(self.dtype))

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        rows = payloads.view(self.dtype)
        out.copy_(rows[0])
        for row in rows[1:]:
            out.add_(row)

    def is_finite(self, payloads: Tensor) -> bool:
        return all_finite(payloads, 0, payloads.shape[1], self.dtype)

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
        torch.add(grad, error, alpha=error_scale, out=new_error)
        rounded = payload.view(self.dtype)
        torch.mul(new_error, weight, out=rounded)
        new_error.sub_(rounded, alpha=1.0 / weight)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Float16(_Cast):
    """IEEE half precision: 11 bits of mantissa, values up to 65504."""

    id: ClassVar[str] = "fp16"
    dtype: ClassVar[torch.dtype] = torch.float16


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class BFloat16(_Cast):
    """bfloat16: 8 bits of mantissa, the range of float32."""

    id: ClassVar[str] = "bf16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16
