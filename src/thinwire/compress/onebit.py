"""Scaled signs: one bit an element, and the mean magnitude."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, sign_decode_sum, sign_encode, sign_nbytes


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class OneBit(Compressor):
    """Each element as plus or minus the mean magnitude of its block; use it with error feedback.

    Payload: the blocks' scales as float32, then the signs, 8 to a byte.

    Source: scaled 1-bit (onebit) of BytePS-Compress (arXiv 2105.07829).
    """

    id: ClassVar[str] = "onebit"

    block: int = 0
    """Elements that share a scale: a multiple of 8, or 0 for one scale in all."""

    def __post_init__(self) -> None:
        if type(self.block) is not int or self.block < 0 or self.block % 8:
            raise ValueError(f"block is 0 (one scale in all) or a positive multiple of 8, not {self.block!r}")

    def payload_nbytes(self, numel: int) -> int:
        return sign_nbytes(numel, self.block)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        sign_encode(x, None, None, payload, block=self.block, weight=weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        sign_decode_sum(payloads, out, block=self.block)

    def is_finite(self, payloads: Tensor) -> bool:
        # A vector of n elements has s scales: 4s bytes of them and ⌈n / 8⌉ of signs; blocks hold whole bytes.
        nbytes, per_block = payloads.shape[-1], 4 + self.block // 8
        count = -(-nbytes // per_block) if self.block else min(nbytes, 1)
        return all_finite(payloads, 0, 4 * count, torch.float32)

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
        sign_encode(grad, error, new_error, payload, block=self.block, error_scale=error_scale, weight=weight)
