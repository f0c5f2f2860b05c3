"""Writing results past the caches.

A store to a line that is not in the cache reads the line first, only to overwrite it. A sparse result, nearly all zeros
and not read again soon, is made in a tile and stored around the caches instead, whole lines at a time. Dense codes take
longer to decode than to write, and gain nothing from it.
"""

import numpy as np
from llvmlite import ir
from numba import types

from thinwire.kernels.cpu.bits import intrinsic
from thinwire.kernels.cpu.compiled import compiled

LINE = 16  # float32 elements of a cache line
_ELEMENT_BYTES = 4
_LINE_BYTES = _ELEMENT_BYTES * LINE
_FLOATS = ir.VectorType(ir.FloatType(), LINE)


@intrinsic
def _store_line(_, tile, start, out):  # type: ignore[no-untyped-def]
    """Copy 16 elements from ``start`` of the tile to the same places of ``out``, where a cache line begins."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        source, target = (
            builder.bitcast(
                builder.gep(context.make_array(signature.args[i])(context, builder, args[i]).data, [args[1]]),
                _FLOATS.as_pointer(),
            )
            for i in (0, 2)
        )
        store = builder.store(builder.load(source, align=_ELEMENT_BYTES, typ=_FLOATS), target, align=_LINE_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))

    return types.void(tile, types.intp, out), generate


@intrinsic
def settle(_):  # type: ignore[no-untyped-def]
    """Have all threads see what was streamed before what this one stores next."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")

    return types.void(), generate


@compiled
def stream(tile, out):  # type: ignore[no-untyped-def]
    """Copy the first elements of a tile over all of ``out``, contiguous float32 both. :func:`settle` comes last."""
    n = out.size
    into_line = np.int64(out.ctypes.data // _ELEMENT_BYTES) % LINE
    head = min(n, (LINE - into_line) % LINE)
    whole = head + ((n - head) & ~(LINE - 1))
    for i in range(head):
        out[i] = tile[i]
    for i in range(head, whole, LINE):
        _store_line(tile, i, out)
    for i in range(whole, n):
        out[i] = tile[i]
