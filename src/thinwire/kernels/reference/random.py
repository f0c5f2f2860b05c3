"""Philox4x32-7 in plain torch; contracts in :mod:`thinwire.kernels.random`."""

import torch
from torch import Tensor

NUM_ROUNDS = 7
MASK32 = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four 32-bit words of each block, in int64, for the four 32-bit words of its counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK32, key >> 32
    for _ in range(NUM_ROUNDS):
        # The products wrap to negative numbers; all of their 64 bits are still there.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & MASK32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32 & MASK32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = k0 + 0x9E3779B9 & MASK32, k1 + 0xBB67AE85 & MASK32
    return c0, c1, c2, c3


def random_bits(numel: int, key: int, start: int, device: torch.device) -> Tensor:
    """32 random bits for each of the elements ``start`` to ``start + numel``, as int64."""
    num_tiles = -(-numel // 256)
    block = torch.arange(start // 4, start // 4 + 64 * num_tiles, device=device)
    zero = torch.zeros_like(block)
    words = torch.stack(philox((block & MASK32, block >> 32, zero, zero), key))
    return words.view(4, num_tiles, 64).transpose(0, 1).reshape(-1)[:numel]


def uniform(out: Tensor, key: int, start: int) -> None:
    bits = random_bits(out.numel(), key, start, out.device)
    torch.mul(bits >> 8, 2.0**-24, out=out)
