"""TernGrad: -1, 0 or 1 times the largest magnitude."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key, payload_part
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, dither_decode_sum, dither_encode, num_scales


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class TernGrad(Compressor):
    """Each element rounded at random to -1, 0 or 1 times its block's largest magnitude, after clipping.

    Clipping bounds the noise, and makes what is decoded right on average for the clipped vector only: with ``clip=0``
    it is unbiased. σ is taken about 0, not about the mean, so that equal elements are not clipped away. Workers do not
    share their scales, which the paper proposes for sums of levels.

    Payload: that of linear_dithering with 2 bits.

    Source: TernGrad (Wen et al., arXiv 1705.07878).
    """

    id: ClassVar[str] = "terngrad"

    clip: float = 2.5
    """Elements are clipped to this many standard deviations of their block: at least 1, or 0 for no clipping."""
    block: int = 0
    """Elements that share a scale: a multiple of 256, or 0 for one scale in all."""

    def __post_init__(self) -> None:
        if type(self.clip) not in (int, float) or not (self.clip == 0 or 1 <= self.clip < math.inf):
            raise ValueError(f"clip is 0 (off) or a finite number from 1, not {self.clip!r}")
        object.__setattr__(self, "clip", float(self.clip))  # 0 is 0.0, also in the name
        if type(self.block) is not int or self.block < 0 or self.block % 256:
            raise ValueError(f"block is 0 (one scale in all) or a positive multiple of 256, not {self.block!r}")

    @property
    def unbiased(self) -> bool:
        return self.clip == 0

    @property
    def expands(self) -> bool:
        return True  # one large element among small ones, and each of these may become as large

    @property
    def keeps_errors(self) -> bool:
        return False

    def payload_nbytes(self, numel: int) -> int:
        return 4 * num_scales(numel, self.block) + 2 * ((numel + 7) // 8)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        scales, codes = self._parts(payload, x.numel())
        dither_encode(
            x,
            None,
            None,
            codes,
            scales,
            key=key.local(),
            natural=False,
            clip=self.clip,
            block=self.block,
            weight=weight,
        )

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        scales, codes = self._parts(payloads, out.numel())
        dither_decode_sum(codes, scales, out, natural=False, block=self.block)

    def is_finite(self, payloads: Tensor) -> bool:
        # A block begun adds a scale of 4 bytes and at least one byte of codes.
        nbytes, per_block = payloads.shape[-1], 4 + self.block // 4
        count = -(-nbytes // per_block) if self.block else min(nbytes, 1)
        return all_finite(payloads, 0, 4 * count, torch.float32)

    def _parts(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Views of the scales and of the bitmaps, of one payload or of rows of them."""
        split = 4 * num_scales(numel, self.block)
        codes = payload[..., split:].view(*payload.shape[:-1], 2, (numel + 7) // 8)
        return payload_part(payload, 0, split, torch.float32), codes
