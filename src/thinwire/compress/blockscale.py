"""Eight-bit codes with a scale for each block: integers, or floats that keep small values better."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key, payload_part
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, blockscale_decode_sum, blockscale_encode, num_scales


@dataclass(frozen=True, kw_only=True, slots=True)
class _BlockScale(Compressor):
    """Each element rounded to the nearest code, times the largest magnitude of its block.

    Payload: the blocks' largest magnitudes as float32, then the codes.
    """

    dtype: ClassVar[torch.dtype]

    block: int = 256
    """Elements that share a scale, or 0 for one scale in all."""

    def __post_init__(self) -> None:
        if type(self.block) is not int or self.block < 0:
            raise ValueError(f"block is 0 (one scale in all) or a positive integer, not {self.block!r}")

    def payload_nbytes(self, numel: int) -> int:
        return 4 * num_scales(numel, self.block) + numel

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        scales, codes = self._parts(payload, x.numel())
        blockscale_encode(x, None, None, codes, scales, block=self.block, weight=weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        scales, codes = self._parts(payloads, out.numel())
        blockscale_decode_sum(codes, scales, out, block=self.block)

    def is_finite(self, payloads: Tensor) -> bool:
        # A block begun adds a scale of 4 bytes and at least one code.
        nbytes = payloads.shape[-1]
        count = -(-nbytes // (4 + self.block)) if self.block else min(nbytes, 1)
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
        scales, codes = self._parts(payload, grad.numel())
        blockscale_encode(
            grad, error, new_error, codes, scales, block=self.block, error_scale=error_scale, weight=weight
        )

    def _parts(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Views of the scales and of the codes, of one payload or of rows of them."""
        split = 4 * num_scales(numel, self.block)
        return payload_part(payload, 0, split, torch.float32), payload[..., split:].view(self.dtype)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Int8(_BlockScale):
    """Codes −127 to 127 on a uniform grid: an error of at most 1/254 of the block's largest magnitude.

    Source: block-wise absmax quantisation (8-bit optimizers, arXiv 2110.02861), with a uniform grid.
    """

    id: ClassVar[str] = "int8"
    dtype: ClassVar[torch.dtype] = torch.int8


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Float8(_BlockScale):
    """float8_e4m3fn codes: a relative error of at most 1/16 down to 1/28672 of the block's largest magnitude.

    Source: the e4m3 of FP8 formats for deep learning (arXiv 2209.05433).
    """

    id: ClassVar[str] = "fp8"
    dtype: ClassVar[torch.dtype] = torch.float8_e4m3fn
