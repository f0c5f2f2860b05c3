"""Two to eight bits per element: stochastic rounding to a grid set by the largest magnitude of a block, or by its norm.

With b bits there are ``top = 2^(b-1) - 1`` levels above zero and as many below. A level ``l`` stands for ``l / top`` of
the scale on the linear grid, and for ``2^(l - top)`` of it (0 for 0, signs likewise) on the natural grid. Between two
levels the nearer one is the likelier, so that the expectation is the element itself.
"""

import math

from torch import Tensor

from thinwire.kernels.cpu import dither as cpu
from thinwire.kernels.dispatch import as_float32, expect_shape, pick
from thinwire.kernels.random import TILE
from thinwire.kernels.reference import dither as reference
from thinwire.kernels.sign import num_scales


def dither_encode(
    grad: Tensor,
    error: Tensor | None,
    new_error: Tensor | None,
    codes: Tensor,
    scales: Tensor,
    *,
    key: int,
    natural: bool,
    norm: bool = False,
    clip: float = 0.0,
    block: int = 0,
    error_scale: float = 1.0,
    weight: float = 1.0,
) -> None:
    """Round ``q = grad + error_scale * error`` to random levels; keep ``new_error = q - value(level) * scale``.

    Args:
        grad: 1-D, any float dtype and stride; computed in float32. Not changed.
        error: float32, like ``grad``; None stands for zeros.
        new_error: float32, contiguous, like ``grad``; overwritten. May be ``error`` itself, or None. With non-finite
            input it receives garbage.
        codes: uint8 ``[b, ⌈n / 8⌉]``, contiguous, b from 2 to 8; overwritten. One bitmap for each bit of the codes
            ``level + top``, lowest first: bit i of byte j of bitmap p is bit p of element 8j + i's code, and 0 past
            the end.
        scales: float32 ``[num_scales(n, block)]``, contiguous; overwritten with ``weight * scale``, where ``scale``
            is the block's largest ``|q|``. A block with an Inf or NaN has a scale that is Inf or NaN, and levels 0.
        key: 64 bits; element i uses the random number that :func:`thinwire.kernels.uniform_` makes of ``key`` and i.
        natural: which grid.
        norm: whether the scale is the block's Euclidean norm instead. A norm beyond float32 is Inf.
        clip: if not 0, and without ``norm``, the scale is at most this multiple of the block's root mean square, and
            what is larger is rounded as if it were the scale.
        block: elements that share a scale, a multiple of 256; 0: all of them.
        error_scale: factor on ``error``.
        weight: factor on what the payload decodes to, and not on the error.

    Raises:
        ValueError: if a shape does not fit ``grad``, or ``b`` or ``block`` is not allowed.

    Source: QSGD (arXiv 1610.02132), with the max-norm unless ``norm``; natural dithering (Horváth et al., arXiv
    1905.10988); clipping of TernGrad (arXiv 1705.07878).
    """
    grad = as_float32(grad)
    numel = grad.numel()
    _expect_payload(codes, scales, numel, block)
    if not 0 <= clip < math.inf:
        raise ValueError(f"clip is {clip}; it must be 0 (off) or a positive number")
    if error is not None:
        error = as_float32(error)
        expect_shape("error", error, numel)
    if new_error is not None:
        expect_shape("new_error", new_error, numel)
    if numel:
        run = pick(grad.device, cpu=cpu.encode, reference=reference.encode)
        run(grad, error, new_error, codes, scales, key, natural, norm, clip, block or numel, error_scale, weight)


def dither_decode_sum(codes: Tensor, scales: Tensor, out: Tensor, *, natural: bool, block: int = 0) -> None:
    """Write ``out = Σ_rows value(level) * scale``: what ``m`` payloads of :func:`dither_encode` add up to.

    Args:
        codes: uint8 ``[m, b, ⌈n / 8⌉]``, rows contiguous, any stride between them; m ≥ 1.
        scales: float32 ``[m, num_scales(n, block)]``, likewise.
        out: float32 ``[n]``, contiguous; overwritten. Rows are added in order.
        natural: which grid.
        block: as it was encoded with.

    Raises:
        ValueError: if a shape does not fit ``out``, or ``b`` or ``block`` is not allowed.
    """
    numel = out.numel()
    _expect_payload(codes, scales, numel, block, codes.shape[0])
    if numel:
        run = pick(out.device, cpu=cpu.decode_sum, reference=reference.decode_sum)
        run(codes, scales, out, natural, block or numel)


def _expect_payload(codes: Tensor, scales: Tensor, numel: int, block: int, *rows: int) -> None:
    if block % TILE:
        raise ValueError(f"block is {block}; it must be 0 or a multiple of {TILE}")
    if not 2 <= codes.shape[-2] <= 8:
        raise ValueError(f"codes has shape {tuple(codes.shape)}: {codes.shape[-2]} bitmaps; it must have 2 to 8")
    expect_shape("codes", codes, *rows, codes.shape[-2], (numel + 7) // 8)
    expect_shape("scales", scales, *rows, num_scales(numel, block))
