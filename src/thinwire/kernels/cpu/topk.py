"""Exact top-k with numba, in one pass over the vector; contracts in :mod:`thinwire.kernels.topk`.

A small sample gives a threshold that a little more than k elements very likely reach. One pass forms q, writes it, and
collects the candidates: what reaches the threshold. The k largest of the candidates are then found exactly, by
counting. If there are fewer candidates than k, or far too many (a constant vector, say), the same counting runs over
all of q: slower, still linear, and the same result.
"""

import math

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.bits import from_half, lowest_bit, reaching_bits, to_half
from thinwire.kernels.cpu.compiled import compiled
from thinwire.kernels.cpu.load import load
from thinwire.kernels.cpu.rows import flat_rows
from thinwire.kernels.cpu.stream import settle, stream

TILE = 2048  # elements that stay in the L1 cache; a multiple of 64
RUN = 16  # neighbours sampled together: a cache line
MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits but the sign; what is left of two floats orders like the floats
NAN_KEY = np.int32(0x7F800001)  # one more than Inf
LARGEST_HALF, LARGEST_FLOAT = np.float32(65504), np.finfo(np.float32).max
_LIKE = {
    torch.int32: np.empty(0, np.int32),
    torch.int64: np.empty(0, np.int64),
    torch.float32: np.empty(0, np.float32),
    torch.float16: np.empty(0, np.uint16),  # numba has no halves; these are their bits
}
"""Empty arrays that say a type to a compiled function."""


def encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    payload: Tensor,
    k: int,
    index_dtype: torch.dtype,
    value_dtype: torch.dtype,
    lowest: int,
    error_scale: float,
    weight: float,
) -> None:
    _encode(
        grad.numpy(),
        None if error is None else error.numpy(),
        None if new_error is None else new_error.numpy(),
        payload.numpy(),
        k,
        _LIKE[index_dtype],
        _LIKE[value_dtype],
        np.int32(lowest),
        np.float32(error_scale),
        weight,
    )


def decode_sum(payloads: Tensor, out: Tensor, k: int, index_dtype: torch.dtype, value_dtype: torch.dtype) -> None:
    flat, stride = flat_rows(payloads)
    _decode_sum(flat, stride, payloads.shape[0], k, _LIKE[index_dtype], _LIKE[value_dtype], out.numpy())


@compiled
def _encode(grad, error, new_error, payload, k, index_like, value_like, lowest, error_scale, weight):  # type: ignore[no-untyped-def]
    if error is not None:
        q = np.empty(grad.size, np.float32) if new_error is None else new_error
    elif new_error is not None:
        new_error[:] = grad
        q = new_error
    else:
        q = grad
    indices, values = _parts(payload, k, index_like, value_like)
    selected = np.empty(k, np.float32)
    count = _select(q if error is None else grad, error, error_scale, q, lowest, indices, selected)
    half = values.itemsize == 2
    limit = LARGEST_HALF if half else LARGEST_FLOAT
    indices[count:] = indices[count - 1] if count else 0
    values[count:] = 0
    for i in range(count):
        sent = np.float32(weight) * selected[i]
        if math.isfinite(selected[i]):
            sent = max(-limit, min(limit, sent))
        if half:
            values[i] = to_half(sent)
            sent = from_half(np.uint16(values[i]))
        else:
            values[i] = sent
        if new_error is not None:
            new_error[indices[i]] = np.float64(selected[i]) - sent / weight


@compiled
def _parts(payload, k, index_like, value_like):  # type: ignore[no-untyped-def]
    split = k * index_like.itemsize
    return payload[:split].view(index_like.dtype), payload[split : split + k * value_like.itemsize].view(
        value_like.dtype
    )


@compiled
def _select(grad, error, error_scale, q, lowest, indices, selected):  # type: ignore[no-untyped-def]
    """Write q (without an error, it is grad), the indices of its k largest, and these. Returns how many.

    That is k, or fewer if ``lowest`` is not 0, and fewer keys reach it.
    """
    n, k = q.size, indices.size
    sample = np.empty(min(max(n >> 7, 4096), 65536), np.float32)
    capacity = 4 * k + 4 * TILE
    if lowest == 0 and n < max(8 * sample.size, 2 * capacity):
        if error is not None:
            for t in range(0, n, TILE):
                load(grad[t : t + TILE], error[t : t + TILE], error_scale, q[t : t + TILE])
    else:
        found, found_at = np.empty(capacity, np.float32), np.empty(capacity, indices.dtype)
        threshold = lowest
        if lowest == 0:
            _sample(grad, error, error_scale, sample)
            # So far down the sample that k elements of the vector lie above, but for one in thousands of cases.
            expected = k / n * sample.size
            rank = int(expected + 4 * math.sqrt(expected) + 4)
            threshold, _ = _kth_key(sample, rank)
            threshold = max(threshold, np.int32(1))  # zeros are never candidates, nor what fills up the last tile
        count = _sweep(grad, error, error_scale, q, threshold, found, found_at)
        if lowest > 0 and count < k:
            indices[:count], selected[:count] = found_at[:count], found[:count]
            return count
        if k <= count <= capacity:
            _take(found[:count], found_at, indices, selected)
            return k
    _take(q, None, indices, selected)
    return k


@compiled
def _sample(grad, error, error_scale, sample):  # type: ignore[no-untyped-def]
    num_runs = sample.size // RUN
    step = grad.size // num_runs
    for r in range(num_runs):
        part, at = sample[r * RUN : (r + 1) * RUN], slice(r * step, r * step + RUN)
        if error is None:
            part[:] = grad[at]
        else:
            load(grad[at], error[at], error_scale, part)


@compiled
def _kth_key(x, k):  # type: ignore[no-untyped-def]
    """The key of the k-th largest of x, and how many of that key are among the k largest.

    Counts how often each value of the keys' first 11 bits occurs, then of the next 10 among those that begin like the
    k-th largest, then of the last 10.
    """
    bits = x.view(np.int32)
    histogram = np.empty(2048, np.int64)
    prefix, rank = np.int32(0), k
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        histogram[:] = 0
        for i in range(bits.size):
            key = min(bits[i] & MAGNITUDE, NAN_KEY)
            if key >> (shift + width) == prefix:
                histogram[(key >> shift) & ((1 << width) - 1)] += 1
        digit = (1 << width) - 1
        while histogram[digit] < rank:
            rank -= histogram[digit]
            digit -= 1
        prefix = np.int32((prefix << width) | digit)
    return prefix, rank


@compiled
def _sweep(grad, error, error_scale, q, threshold, found, found_at):  # type: ignore[no-untyped-def]
    """Write q; collect what reaches the threshold. Returns how many, or more than fit if they do not fit."""
    flags, padded = np.empty(TILE >> 3, np.uint8), np.zeros(TILE, np.float32)
    words = flags.view(np.uint64)
    count = 0
    for t in range(0, q.size, TILE):
        part = q[t : t + TILE]
        if error is not None:
            load(grad[t : t + TILE], error[t : t + TILE], error_scale, part)
        if part.size < TILE:
            padded[: part.size] = part
            part = padded
        if count + TILE <= found.size:
            for j in range(flags.size):
                flags[j] = reaching_bits(part, 8 * j, threshold)
            for w in range(words.size):
                count = _collect(words[w], part, 64 * w, t, found, found_at, count)
        else:
            count = found.size + 1
    return count


@compiled
def _collect(word, part, first, start, found, found_at, count):  # type: ignore[no-untyped-def]
    while word:
        i = first + lowest_bit(word)
        found[count] = part[i]
        found_at[count] = start + i
        count += 1
        word &= word - np.uint64(1)
    return count


@compiled
def _take(x, positions, indices, selected):  # type: ignore[no-untyped-def]
    """Write the k largest of x, in order, and their positions (without positions: their places in x)."""
    k = indices.size
    kth, num_equal = _kth_key(x, k)
    bits = x.view(np.int32)
    i = count = 0
    while count < k:
        key = min(bits[i] & MAGNITUDE, NAN_KEY)
        equal = key == kth and num_equal > 0
        num_equal -= equal
        indices[count] = i if positions is None else positions[i]
        selected[count] = x[i]
        count += key > kth or equal
        i += 1


@compiled
def _decode_sum(flat, stride, rows, k, index_like, value_like, out):  # type: ignore[no-untyped-def]
    tile, done = np.empty(TILE, np.float32), np.zeros(rows, np.int64)
    for t in range(0, out.size, TILE):
        stop = min(t + TILE, out.size)
        tile[:] = 0
        for r in range(rows):
            indices, values = _parts(flat[r * stride : (r + 1) * stride], k, index_like, value_like)
            done[r] = _add_up(indices, values, done[r], t, stop, tile)
        stream(tile, out[t:stop])
    settle()
    if np.any(done < k):
        raise IndexError("an index is outside the vector")


@compiled
def _add_up(indices, values, j, start, stop, tile):  # type: ignore[no-untyped-def]
    """Add the elements from the j-th that lie before ``stop`` to the tile; returns the number of the next."""
    while j < indices.size and indices[j] < stop:
        if indices[j] < start:
            raise IndexError("indices do not ascend from 0")
        value = from_half(np.uint16(values[j])) if values.itemsize == 2 else np.float32(values[j])
        tile[indices[j] - start] += value
        j += 1
    return j
