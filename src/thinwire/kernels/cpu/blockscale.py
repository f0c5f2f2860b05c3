"""Block-scaled int8 and fp8 with numba; contracts in :mod:`thinwire.kernels.blockscale`."""

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.load import load
from thinwire.kernels.cpu.peak import INFINITY, MAGNITUDE, peak_bits
from thinwire.kernels.cpu.rows import flat_rows

TILE = 1024  # elements whose temporaries stay in the L1 cache
TOP_INT8, TOP_FP8 = np.float32(127), np.float32(448)
# Adding these to a small float makes the machine round it, to nearest even, to integers (of either sign) and to
# multiples of 2⁻⁹, fp8's subnormals; the low bits of the sum then are the rounded number in fixed point.
TO_INTEGER, TO_SUBNORMAL = np.float32(1.5 * 2**23), np.float32(2**14)


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    block: int,
    error_scale: float,
    weight: float,
) -> None:
    _encode(
        grad.numpy(),
        None if error is None else error.numpy(),
        None if new_error is None else new_error.numpy(),
        codes.view(torch.uint8).numpy(),
        scales.numpy(),
        codes.dtype == torch.float8_e4m3fn,
        block,
        np.float32(error_scale),
        np.float32(weight),
    )


def decode_sum(codes: Tensor, scales: Tensor, out: Tensor, block: int) -> None:
    flat, stride = flat_rows(codes.view(torch.uint8))
    flat_scales, scale_stride = flat_rows(scales)
    fp8 = codes.dtype == torch.float8_e4m3fn
    _decode_sum(flat, stride, flat_scales, scale_stride, codes.shape[0], out.numpy(), fp8, block)


@compiled
def _encode(grad, error, new_error, codes, scales, fp8, block, error_scale, weight):  # type: ignore[no-untyped-def]
    tile = np.empty(TILE, np.float32)
    values = np.empty(TILE, np.float32)
    n = grad.size
    for b in range(scales.size):
        begin, end = b * block, min((b + 1) * block, n)
        errors = None if error is None else error[begin:end]
        bits = peak_bits(grad[begin:end], errors, error_scale)
        peak = np.int32(bits).view(np.float32)
        scales[b] = peak * weight
        for t in range(begin, end, TILE):
            stop = min(t + TILE, end)
            part = tile[: stop - t]
            load(grad[t:stop], None if error is None else error[t:stop], error_scale, part)
            if bits >= INFINITY:
                part[:] = 0  # what a NaN becomes as an integer differs between machines
            divisor = peak if 0 < bits < INFINITY else np.float32(1)
            if fp8:
                _quantise_fp8(part, divisor, codes[t:stop])
            else:
                _quantise_int8(part, divisor, codes[t:stop])
            if new_error is not None:
                _values(codes[t:stop], fp8, peak, values)
                kept = new_error[t:stop]
                for i in range(kept.size):
                    kept[i] = part[i] - values[i]


@compiled
def _quantise_int8(q, peak, codes):  # type: ignore[no-untyped-def]
    for i in range(q.size):
        shifted = np.float32(q[i] / peak * TOP_INT8 + TO_INTEGER)
        codes[i] = np.uint8(shifted.view(np.int32) & np.int32(0xFF))


@compiled
def _quantise_fp8(q, peak, codes):  # type: ignore[no-untyped-def]
    for i in range(q.size):
        bits = np.float32(q[i] / peak * TOP_FP8).view(np.int32)
        sign = np.int32(bits >> np.int32(24)) & np.int32(0x80)
        magnitude = np.int32(bits & MAGNITUDE)
        # Keep 3 of 23 mantissa bits, rounding to nearest even, and move the exponent's bias from 127 to 7.
        odd = np.int32(magnitude >> np.int32(20)) & np.int32(1)
        normal = np.int32(np.int32(magnitude + np.int32(0x7FFFF) + odd) >> np.int32(20)) - np.int32(120 << 3)
        tiny = np.float32(magnitude.view(np.float32) + TO_SUBNORMAL).view(np.int32) & np.int32(0xFF)
        codes[i] = np.uint8(sign | (normal if magnitude >= np.int32(121 << 23) else tiny))


@compiled
def _values(codes, fp8, peak, values):  # type: ignore[no-untyped-def]
    if fp8:
        for i in range(codes.size):
            code = np.int32(codes[i])
            magnitude = np.int32(code & np.int32(0x7F))
            normal = np.int32((magnitude << np.int32(20)) + np.int32(120 << 23)).view(np.float32)
            tiny = np.float32(magnitude) * np.float32(2.0**-9)
            value = normal if magnitude >= 8 else tiny
            values[i] = (-value if code >= 128 else value) * (np.float32(1) / TOP_FP8) * peak
    else:
        for i in range(codes.size):
            values[i] = np.float32(np.int8(codes[i])) * (np.float32(1) / TOP_INT8) * peak


@compiled
def _decode_sum(flat, stride, scales, scale_stride, rows, out, fp8, block):  # type: ignore[no-untyped-def]
    values = np.empty(TILE, np.float32)
    n = out.size
    for b in range((n + block - 1) // block):
        end = min((b + 1) * block, n)
        for t in range(b * block, end, TILE):
            part = out[t : min(t + TILE, end)]
            _values(flat[t : t + part.size], fp8, scales[b], part)
            for r in range(1, rows):
                first = r * stride + t
                _values(flat[first : first + part.size], fp8, scales[r * scale_stride + b], values)
                for i in range(part.size):
                    part[i] += values[i]
