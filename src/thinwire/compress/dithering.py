"""Dithering: stochastic rounding to a few levels, right on average, on a uniform grid or on powers of two."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compress.base import Compressor, Key, payload_part
from thinwire.compress.registry import register
from thinwire.kernels import all_finite, dither_decode_sum, dither_encode, num_scales


@dataclass(frozen=True, kw_only=True, slots=True)
class _Dithering(Compressor):
    """Each element as a sign and a level of its block's largest magnitude, rounded by this rank's own random numbers.

    Unbiased as it is; with error feedback its noise is made up for instead of averaged out.

    Payload: the blocks' scales as float32, then one bitmap for each bit of the codes.
    """

    natural: ClassVar[bool]
    norm: ClassVar[bool] = False
    """Whether the scale is the block's Euclidean norm, and not its largest magnitude."""

    bits: int
    """Bits per element, the sign's included: 2 to 8."""
    block: int = 1024
    """Elements that share a scale: a multiple of 256, or 0 for one scale in all."""

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 2 <= self.bits <= 8:
            raise ValueError(f"bits is an integer from 2 to 8, not {self.bits!r}")
        if type(self.block) is not int or self.block < 0 or self.block % 256:
            raise ValueError(f"block is 0 (one scale in all) or a positive multiple of 256, not {self.block!r}")

    @property
    def unbiased(self) -> bool:
        return True

    def payload_nbytes(self, numel: int) -> int:
        return 4 * num_scales(numel, self.block) + self.bits * ((numel + 7) // 8)

    def encode(self, x: Tensor, payload: Tensor, key: Key, *, weight: float = 1.0) -> None:
        self._encode(x, None, None, payload, key, 1.0, weight)

    def decode(self, payloads: Tensor, out: Tensor, key: Key) -> None:
        scales, codes = self._parts(payloads, out.numel())
        dither_decode_sum(codes, scales, out, natural=self.natural, block=self.block)

    def is_finite(self, payloads: Tensor) -> bool:
        # A block begun adds a scale of 4 bytes and at least one byte of codes.
        nbytes, per_block = payloads.shape[-1], 4 + self.bits * self.block // 8
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
        self._encode(grad, error, new_error, payload, key, error_scale, weight)

    def _encode(
        self,
        grad: Tensor,
        error: Tensor | None,
        new_error: Tensor | None,
        payload: Tensor,
        key: Key,
        error_scale: float,
        weight: float,
    ) -> None:
        scales, codes = self._parts(payload, grad.numel())
        dither_encode(
            grad,
            error,
            new_error,
            codes,
            scales,
            key=key.local(),
            natural=self.natural,
            norm=self.norm,
            block=self.block,
            error_scale=error_scale,
            weight=weight,
        )

    def _parts(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Views of the scales and of the bitmaps, of one payload or of rows of them."""
        split = 4 * num_scales(numel, self.block)
        codes = payload[..., split:].view(*payload.shape[:-1], self.bits, (numel + 7) // 8)
        return payload_part(payload, 0, split, torch.float32), codes


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class LinearDithering(_Dithering):
    """Levels on a uniform grid: with b bits, multiples of 1 / (2^(b-1) - 1).

    Source: QSGD (arXiv 1610.02132) with the max-norm, as in BytePS-Compress (arXiv 2105.07829); there the norm is the
    whole vector's, here a block's.
    """

    id: ClassVar[str] = "linear_dithering"
    natural: ClassVar[bool] = False

    bits: int = 5


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class NaturalDithering(_Dithering):
    """Levels on powers of two: with b bits, 0 and 2^0 down to 2^(2 - 2^(b-1)).

    Source: natural dithering (Horváth et al., arXiv 1905.10988) with the max-norm, here a block's.
    """

    id: ClassVar[str] = "natural_dithering"
    natural: ClassVar[bool] = True

    bits: int = 3
