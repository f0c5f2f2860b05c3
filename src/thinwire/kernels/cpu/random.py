"""Philox4x32-7 with numba; contracts in :mod:`thinwire.kernels.random`."""

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled

NUM_ROUNDS = 7
MASK32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def uniform(out: Tensor, key: int, start: int) -> None:
    _uniform(out.numpy(), np.uint64(key), start // 256)


@compiled
def random_tile(tile, key, bits):  # type: ignore[no-untyped-def]
    """Write the 32 random bits of each of the 256 elements of a tile."""
    first = np.uint64(tile) * np.uint64(64)
    for c in range(64):
        # Words are kept in 64 bits. Whatever is above their low half is dropped by the masks, which cost nothing:
        # the machine's 32 × 32 → 64 bit multiplication ignores it anyway.
        c0 = first + np.uint64(c)
        c1 = c0 >> HALF
        c2 = np.uint64(0)
        c3 = np.uint64(0)
        k0 = key
        k1 = key >> HALF
        for _ in range(NUM_ROUNDS):
            p0 = (c0 & MASK32) * MULTIPLIER_0
            p1 = (c2 & MASK32) * MULTIPLIER_1
            c0 = (p1 >> HALF) ^ c1 ^ k0
            c2 = (p0 >> HALF) ^ c3 ^ k1
            c1 = p1
            c3 = p0
            k0 += WEYL_0
            k1 += WEYL_1
        bits[c] = np.uint32(c0 & MASK32)
        bits[c + 64] = np.uint32(c1 & MASK32)
        bits[c + 128] = np.uint32(c2 & MASK32)
        bits[c + 192] = np.uint32(c3 & MASK32)


@compiled
def _uniform(out, key, first_tile):  # type: ignore[no-untyped-def]
    bits = np.empty(256, np.uint32)
    for t in range((out.size + 255) // 256):
        random_tile(first_tile + t, key, bits)
        part = out[256 * t : 256 * t + 256]
        for i in range(part.size):
            part[i] = np.float32(bits[i] >> np.uint32(8)) * np.float32(2.0**-24)
