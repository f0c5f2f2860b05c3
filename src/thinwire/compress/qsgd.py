"""QSGD: stochastic rounding to multiples of a part of the Euclidean norm."""

from dataclasses import dataclass
from typing import ClassVar

from thinwire.compress.dithering import _Dithering
from thinwire.compress.registry import register


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class QSGD(_Dithering):
    """Levels on a uniform grid over the block's norm: with b bits, multiples of 1 / (2^(b-1) - 1) of it.

    The norm is larger than the largest magnitude that ``linear_dithering`` takes, and so is the noise. The paper's
    Elias code, whose size depends on the values, is left out. A norm beyond float32 is Inf, visibly.

    Source: QSGD (Alistarh et al., arXiv 1610.02132).
    """

    id: ClassVar[str] = "qsgd"
    natural: ClassVar[bool] = False
    norm: ClassVar[bool] = True

    bits: int = 4
    block: int = 512
    """Elements that share a norm: a multiple of 256, or 0 for one norm in all."""

    @property
    def expands(self) -> bool:
        # Lemma 3.1: with s levels, the noise of d elements is at most min(d / s², √d / s) of their squared norm.
        return self.block == 0 or self.block > (2 ** (self.bits - 1) - 1) ** 2
