"""Random numbers as a pure function of a key and an index: no generator, no state, the same bits on every device.

The generator is Philox4x32 with 7 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011): the
fewest rounds that pass BigCrush, any 64-bit key, and on a CPU as fast as a keyed 32-bit hash, because the four words
that a block yields share its multiplications. Element ``256 t + 64 w + c`` takes word ``w`` of block ``64 t + c``, so
a tile of 256 elements is four contiguous stores. The block number is the low half of the counter, the key is the key.
"""

from torch import Tensor

from thinwire.kernels.cpu import random as cpu
from thinwire.kernels.dispatch import pick
from thinwire.kernels.reference import random as reference

TILE = 256
"""Elements whose random numbers are made together."""


def uniform_(out: Tensor, key: int, *, start: int = 0) -> None:
    """Fill ``out`` with numbers uniform in [0, 1), multiples of 2⁻²⁴.

    Args:
        out: float32, 1-D, contiguous; overwritten.
        key: 64 bits; different keys give unrelated numbers.
        start: index of the first element, a multiple of ``TILE``, any size up to 2⁶².

    Raises:
        ValueError: if ``start`` is negative or no multiple of ``TILE``.
    """
    if start < 0 or start % TILE:
        raise ValueError(f"start is {start}; it must be a multiple of {TILE}, at least 0")
    pick(out.device, cpu=cpu.uniform, reference=reference.uniform)(out, key, start)
