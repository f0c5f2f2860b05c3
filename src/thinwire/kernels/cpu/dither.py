"""Stochastic rounding to a grid with numba; contracts in :mod:`thinwire.kernels.dither`."""

import math

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.load import load
from thinwire.kernels.cpu.peak import INFINITY, MAGNITUDE, peak_bits, sum_squares
from thinwire.kernels.cpu.random import random_tile
from thinwire.kernels.cpu.rows import flat_rows

TILE = 1024  # elements whose temporaries stay in the L1 cache; a multiple of 256, for random numbers come so
# Bits of an 8 × 8 matrix, a row to a byte, that change places with bits 7, 14 and 28 higher when it is transposed.
SWAPS_7, SWAPS_14, SWAPS_28 = (
    np.uint64(0x00AA00AA00AA00AA),
    np.uint64(0x0000CCCC0000CCCC),
    np.uint64(0x00000000F0F0F0F0),
)


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    key: int,
    natural: bool,
    norm: bool,
    clip: float,
    block: int,
    error_scale: float,
    weight: float,
) -> None:
    _encode(
        grad.numpy(),
        None if error is None else error.numpy(),
        None if new_error is None else new_error.numpy(),
        codes.numpy(),
        scales.numpy(),
        np.uint64(key),
        natural,
        norm,
        float(clip),
        block,
        np.float32(error_scale),
        np.float32(weight),
    )


def decode_sum(codes: Tensor, scales: Tensor, out: Tensor, natural: bool, block: int) -> None:
    rows, bits, _ = codes.shape
    flat, stride = flat_rows(codes)
    flat_scales, scale_stride = flat_rows(scales)
    _decode_sum(flat, stride, flat_scales, scale_stride, rows, bits, out.numpy(), natural, block)


@compiled
def _encode(grad, error, new_error, planes, scales, key, natural, norm, clip, block, error_scale, weight):  # type: ignore[no-untyped-def]
    q = np.empty(TILE, np.float32)
    values = np.empty(TILE, np.float32)
    random = np.empty(TILE, np.uint32)
    codes = np.empty(TILE + 8, np.uint8)
    words = codes.view(np.uint64)
    top = np.int32((1 << (planes.shape[0] - 1)) - 1)
    n = grad.size
    for b in range(scales.size):
        begin, end = b * block, min((b + 1) * block, n)
        peak = _scale(grad[begin:end], None if error is None else error[begin:end], error_scale, norm, clip)
        bits = np.float32(peak).view(np.int32)
        scales[b] = peak * weight
        divisor = peak if 0 < bits < INFINITY else np.float32(1)
        for t in range(begin, end, TILE):
            stop = min(t + TILE, end)
            size = stop - t
            part = q[:size]
            load(grad[t:stop], None if error is None else error[t:stop], error_scale, part)
            if bits >= INFINITY:
                part[:] = 0  # what a NaN becomes as an integer differs between machines
            for i in range(0, size, 256):
                random_tile((t + i) >> 8, key, random[i : i + 256])
            rounded = part
            if clip > 0:
                rounded = values[:size]
                for i in range(size):
                    rounded[i] = max(-divisor, min(divisor, part[i]))
            if natural:
                _natural_levels(rounded, divisor, top, random, codes)
            else:
                _linear_levels(rounded, divisor, top, random, codes)
            if new_error is not None:
                _values(codes, natural, top, peak, values[:size])
                kept = new_error[t:stop]
                for i in range(size):
                    kept[i] = part[i] - values[i]
            codes[size : size + 7] = 0
            _transpose(words)
            for p in range(planes.shape[0]):
                plane = planes[p, t >> 3 : (stop + 7) >> 3]
                for j in range(plane.size):
                    plane[j] = np.uint8((words[j] >> np.uint64(8 * p)) & np.uint64(0xFF))


@compiled
def _scale(grad, error, error_scale, norm, clip):  # type: ignore[no-untyped-def]
    bits = peak_bits(grad, error, error_scale)
    peak = np.int32(bits).view(np.float32)
    if bits >= INFINITY or not (norm or clip > 0):
        return peak
    squares = sum_squares(grad, error, error_scale)
    if norm:
        return np.float32(math.sqrt(squares))
    return min(peak, np.float32(clip * math.sqrt(squares / grad.size)))


@compiled
def _linear_levels(q, peak, top, random, codes):  # type: ignore[no-untyped-def]
    # Fixed point with 24 bits after the point, where adding a random fraction and rounding down is exact. It cannot
    # overflow: |q / peak| ≤ 1 and top ≤ 127.
    one = np.float32(top << 24)
    for i in range(q.size):
        fixed = np.int32(q[i] / peak * one)
        level = np.int32(fixed + np.int32(random[i] >> np.uint32(8))) >> np.int32(24)
        codes[i] = np.uint8(level + top)


@compiled
def _natural_levels(q, peak, top, random, codes):  # type: ignore[no-untyped-def]
    lowest = np.int32((128 - top) << 23)  # the bits of 2^(1 - top)
    to_lowest = np.int32((126 + top) << 23).view(np.float32)
    for i in range(q.size):
        y = np.float32(q[i] / peak)
        magnitude = np.int32(y.view(np.int32) & MAGNITUDE)
        # Within an octave the mantissa is the distance from the power of two below, so a random number added to it
        # carries into the exponent with the probability that rounds up.
        octave = np.int32(np.int32(magnitude + np.int32(random[i] >> np.uint32(9))) >> np.int32(23)) - (127 - top)
        part = np.int32(abs(y) * to_lowest * np.float32(2.0**24)) if magnitude < lowest else np.int32(0)
        level = octave if magnitude >= lowest else np.int32(part > np.int32(random[i] >> np.uint32(8)))
        codes[i] = np.uint8(top - level if y < 0 else top + level)


@compiled
def _values(codes, natural, top, scale, values):  # type: ignore[no-untyped-def]
    if natural:
        for i in range(values.size):
            level = np.int32(np.int32(codes[i]) - top)
            power = np.int32(np.int32(abs(level) + np.int32(127) - top) << np.int32(23)).view(np.float32)
            part = power if level != 0 else np.float32(0)
            values[i] = (part if level >= 0 else -part) * scale
    else:
        step = np.float32(1) / np.float32(top)
        for i in range(values.size):
            values[i] = np.float32(np.int32(codes[i]) - top) * step * scale


@compiled
def _transpose(words):  # type: ignore[no-untyped-def]
    """Turn each word's eight codes into the eight bytes of their bitmaps, or back (Hacker's Delight, 7-3)."""
    for j in range(words.size):
        x = words[j]
        swap = (x ^ (x >> np.uint64(7))) & SWAPS_7
        x ^= swap ^ (swap << np.uint64(7))
        swap = (x ^ (x >> np.uint64(14))) & SWAPS_14
        x ^= swap ^ (swap << np.uint64(14))
        swap = (x ^ (x >> np.uint64(28))) & SWAPS_28
        words[j] = x ^ swap ^ (swap << np.uint64(28))


@compiled
def _decode_sum(flat, stride, scales, scale_stride, rows, bits, out, natural, block):  # type: ignore[no-untyped-def]
    codes = np.empty(TILE, np.uint8)
    words = codes.view(np.uint64)
    values = np.empty(TILE, np.float32)
    top = np.int32((1 << (bits - 1)) - 1)
    n, width = out.size, (out.size + 7) >> 3
    for b in range((n + block - 1) // block):
        end = min((b + 1) * block, n)
        for t in range(b * block, end, TILE):
            part = out[t : min(t + TILE, end)]
            for r in range(rows):
                words[:] = 0
                for p in range(bits):
                    first = r * stride + p * width + (t >> 3)
                    plane = flat[first : first + ((part.size + 7) >> 3)]
                    for j in range(plane.size):
                        words[j] |= np.uint64(plane[j]) << np.uint64(8 * p)
                _transpose(words)
                scale = scales[r * scale_stride + b]
                if r == 0:
                    _values(codes, natural, top, scale, part)
                else:
                    _values(codes, natural, top, scale, values[: part.size])
                    for i in range(part.size):
                        part[i] += values[i]
