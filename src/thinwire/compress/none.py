"""No compression: the bytes themselves. What the exchange packs with where a scheme wants payloads."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key
from thinwire.compress.registry import register
from thinwire.kernels import all_finite


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Identity(Compressor):
    """Every element as float32."""

    id: ClassVar[str] = "none"

    @property
    def sum_dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def unbiased(self) -> bool:
        return True

    def payload_nbytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        torch.mul(x, weight, out=payload.view(torch.float32))

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        rows = payloads.view(torch.float32)
        out.copy_(rows[0])
        for row in rows[1:]:
            out.add_(row)

    def is_finite(self, payloads: Tensor) -> bool:
        return all_finite(payloads, 0, payloads.shape[1], torch.float32)
