"""Sign packing with numba; contracts in :mod:`thinwire.kernels.sign`."""

import math

import numpy as np
from torch import Tensor

from thinwire.kernels.cpu.bits import add_signed_, negative_bits, prefetch, set_signed_, set_signed_sum_
from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.load import load
from thinwire.kernels.cpu.rows import flat_rows

TILE = 2048  # elements whose temporaries stay in the L1 cache; a multiple of 8
AHEAD = 512  # elements between what is written and what is fetched to be written next


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    payload: Tensor,
    block: int,
    error_scale: float,
    weight: float,
) -> None:
    _encode(
        grad.numpy(),
        None if error is None else error.numpy(),
        None if new_error is None else new_error.numpy(),
        payload.numpy(),
        block,
        np.float32(error_scale),
        weight,
    )


def decode_sum(payloads: Tensor, out: Tensor, block: int) -> None:
    flat, stride = flat_rows(payloads)
    _decode_sum(flat, stride, payloads.shape[0], out.numpy(), block, False)


def vote(payloads: Tensor, out: Tensor) -> None:
    flat, stride = flat_rows(payloads)
    _decode_sum(flat, stride, payloads.shape[0], out.numpy(), out.numel(), True)


@compiled
def _encode(grad, error, new_error, payload, block, error_scale, weight):  # type: ignore[no-untyped-def]
    tile = np.empty(TILE, np.float32)
    n = grad.size
    scales, signs = _parts(payload, n, block)
    for b in range(scales.size):
        begin, end = b * block, min((b + 1) * block, n)
        total = 0.0
        for t in range(begin, end, TILE):
            stop = min(t + TILE, end)
            q = tile[: stop - t] if new_error is None else new_error[t:stop]
            if error is not None:
                load(grad[t:stop], error[t:stop], error_scale, q)
            elif new_error is not None:
                q[:] = grad[t:stop]
            else:
                q = grad[t:stop]
            total += _sum_magnitudes(q)
            _pack(q, signs[t >> 3 : (stop + 7) >> 3])
        scales[b] = weight * (total / (end - begin))
        if new_error is not None:
            sent = np.float32(scales[b] / weight)
            # Backwards: what was written last is still in the cache.
            for t in range(begin + (end - begin - 1) // TILE * TILE, begin - 1, -TILE):
                _subtract(new_error[t : min(t + TILE, end)], sent)


@compiled
def _parts(payload, n, block):  # type: ignore[no-untyped-def]
    nbytes = 4 * ((n + block - 1) // block)
    return payload[:nbytes].view(np.float32), payload[nbytes:]


@compiled
def _sum_magnitudes(q):  # type: ignore[no-untyped-def]
    total = _sum_magnitudes_narrow(q)
    if math.isfinite(total):
        return np.float64(total)
    wide = 0.0  # finite elements whose float32 sum overflows have a finite mean
    for x in q:
        wide += abs(np.float64(x))
    return wide


@compiled(fastmath={"reassoc"})  # so that LLVM vectorises the sum
def _sum_magnitudes_narrow(q):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(q.size):
        total += abs(q[i])
    return total


@compiled
def _pack(q, signs):  # type: ignore[no-untyped-def]
    for j in range(q.size >> 3):
        signs[j] = negative_bits(q, 8 * j)
    if q.size & 7:
        signs[q.size >> 3] = 0
        for i in range(q.size & ~7, q.size):
            signs[i >> 3] |= np.uint8(q[i] < 0) << np.uint8(i & 7)


@compiled
def _subtract(q, scale):  # type: ignore[no-untyped-def]
    for i in range(q.size):
        q[i] -= -scale if q[i] < 0 else scale


@compiled
def _decode_sum(flat, stride, rows, out, block, vote):  # type: ignore[no-untyped-def]
    n = out.size
    nbytes = 4 * ((n + block - 1) // block)
    for b in range(nbytes >> 2):
        end = min((b + 1) * block, n)
        for t in range(b * block, end, TILE):
            part = out[t : min(t + TILE, end)]
            signs, scale = _row(flat, stride, 0, b, nbytes + (t >> 3), part.size, vote)
            if rows & 1:
                _unpack(signs, scale, part)
            else:
                signs_2, scale_2 = _row(flat, stride, 1, b, nbytes + (t >> 3), part.size, vote)
                _unpack_two(signs, scale, signs_2, scale_2, part)
            for r in range(2 - (rows & 1), rows, 2):
                signs, scale = _row(flat, stride, r, b, nbytes + (t >> 3), part.size, vote)
                signs_2, scale_2 = _row(flat, stride, r + 1, b, nbytes + (t >> 3), part.size, vote)
                _unpack_add_two(signs, scale, signs_2, scale_2, part)
            if vote:
                _to_signs(part)


@compiled
def _row(flat, stride, r, b, begin, n, vote):  # type: ignore[no-untyped-def]
    """A row's signs of n elements, and their scale; in a vote 1 instead, 0 for 0, and NaN if it is not finite."""
    row = flat[r * stride : (r + 1) * stride]
    scale = row[4 * b : 4 * b + 4].view(np.float32)[0]
    if vote:
        scale = np.float32(scale > 0) + (scale - scale)
    return row[begin : begin + ((n + 7) >> 3)], scale


@compiled
def _to_signs(x):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        x[i] = np.float32(1) if x[i] > 0 else np.float32(-1) if x[i] < 0 else x[i]


@compiled
def _unpack(signs, scale, out):  # type: ignore[no-untyped-def]
    for i in range(0, out.size & ~15, 16):
        set_signed_(out, i, signs, scale)
        prefetch(out, i + AHEAD)
    for i in range(out.size & ~15, out.size):
        out[i] = _signed(signs, scale, i)


@compiled
def _unpack_two(signs, scale, signs_2, scale_2, out):  # type: ignore[no-untyped-def]
    for i in range(0, out.size & ~15, 16):
        set_signed_sum_(out, i, signs, scale, signs_2, scale_2)
        prefetch(out, i + AHEAD)
    for i in range(out.size & ~15, out.size):
        out[i] = _signed(signs, scale, i) + _signed(signs_2, scale_2, i)


@compiled
def _unpack_add_two(signs, scale, signs_2, scale_2, out):  # type: ignore[no-untyped-def]
    for i in range(0, out.size & ~15, 16):
        add_signed_(out, i, signs, scale, signs_2, scale_2)
        prefetch(out, i + TILE)
    for i in range(out.size & ~15, out.size):
        out[i] += _signed(signs, scale, i)
        out[i] += _signed(signs_2, scale_2, i)


@compiled
def _signed(signs, scale, i):  # type: ignore[no-untyped-def]
    return -scale if signs[i >> 3] >> (i & 7) & 1 else scale
