"""What LLVM has and scalar loops cannot say: eight comparisons to the bits of a byte, bits to sixteen signs, halves.

A comparison of two vectors of eight gives eight bits, which are a byte, and sixteen bits choose between two vectors.
With AVX-512 each is one instruction; elsewhere LLVM finds a short sequence. Arrays are contiguous float32 unless a
docstring says otherwise, and nothing is checked: the eight or sixteen elements from ``start`` must exist.
"""

from typing import Any

import numba.extending
from llvmlite import ir
from numba import types

intrinsic: Any = numba.extending.intrinsic  # its types expect the typing context in calls too
_INT, _BYTE = ir.IntType(32), ir.IntType(8)
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), 8), ir.VectorType(_INT, 8)
_MANY_FLOATS, _MANY_BITS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(1), 16)
_ZEROS = ir.Constant(_FLOATS, [0.0] * 8)
_ALIGNMENT_BYTES = 4  # an element's, which is all that is known of a slice


@intrinsic
def negative_bits(_, x, start):  # type: ignore[no-untyped-def]
    """The byte whose bit i says whether ``x[start + i] < 0``."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        values = builder.load(_pointer(context, builder, signature, args), align=_ALIGNMENT_BYTES, typ=_FLOATS)
        return builder.bitcast(builder.fcmp_ordered("<", values, _ZEROS), _BYTE)

    return types.uint8(x, types.intp), generate


@intrinsic
def reaching_bits(_, x, start, key):  # type: ignore[no-untyped-def]
    """The byte whose bit i says whether ``x[start + i]``, read as an integer without its sign bit, reaches ``key``."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        values = builder.load(_pointer(context, builder, signature, args), align=_ALIGNMENT_BYTES, typ=_INTS)
        magnitude = builder.and_(values, ir.Constant(_INTS, [0x7FFFFFFF] * 8))
        return builder.bitcast(builder.icmp_signed(">=", magnitude, _splat(builder, args[2], _INTS)), _BYTE)

    return types.uint8(x, types.intp, types.int32), generate


@intrinsic
def lowest_bit(_, word):  # type: ignore[no-untyped-def]
    """The number of the lowest bit that is 1 in a uint64 that is not 0."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def set_signed_(_, out, start, signs, scale):  # type: ignore[no-untyped-def]
    """Set sixteen elements from ``out[start]`` on: to −scale where their bit is 1, else to scale.

    ``signs`` is of uint8: bit i % 8 of byte i / 8 belongs to ``out[i]``. ``start`` is a multiple of 8.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, args, _MANY_FLOATS)
        builder.store(_signed(context, builder, signature, args, 2), pointer, align=_ALIGNMENT_BYTES)

    return types.void(out, types.intp, signs, types.float32), generate


@intrinsic
def set_signed_sum_(_, out, start, signs, scale, signs_2, scale_2):  # type: ignore[no-untyped-def]
    """Set sixteen elements to the sum of what :func:`set_signed_` would set them to for each of two rows."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, args, _MANY_FLOATS)
        first, second = (_signed(context, builder, signature, args, position) for position in (2, 4))
        builder.store(builder.fadd(first, second), pointer, align=_ALIGNMENT_BYTES)

    return types.void(out, types.intp, signs, types.float32, signs_2, types.float32), generate


@intrinsic
def add_signed_(_, out, start, signs, scale, signs_2, scale_2):  # type: ignore[no-untyped-def]
    """Add to sixteen elements first what :func:`set_signed_` would set them to for one row, then for another."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, args, _MANY_FLOATS)
        total = builder.load(pointer, align=_ALIGNMENT_BYTES, typ=_MANY_FLOATS)
        for position in (2, 4):
            total = builder.fadd(total, _signed(context, builder, signature, args, position))
        builder.store(total, pointer, align=_ALIGNMENT_BYTES)

    return types.void(out, types.intp, signs, types.float32, signs_2, types.float32), generate


@intrinsic
def prefetch(_, out, start):  # type: ignore[no-untyped-def]
    """Have the cache line of ``out[start]``, which may be past the end, brought near to be written.

    A processor foresees which lines a loop will read; of those that it only writes, it waits for each.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = _pointer(context, builder, signature, args)
        hint = ir.FunctionType(ir.VoidType(), [pointer.type, _INT, _INT, _INT])
        for_writing, keep_near, data = _INT(1), _INT(3), _INT(1)
        builder.call(
            builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=hint), [pointer, for_writing, keep_near, data]
        )

    return types.void(out, types.intp), generate


@intrinsic
def to_half(_, x):  # type: ignore[no-untyped-def]
    """The bits of a float32 rounded to nearest float16; Inf where it is too large."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def from_half(_, bits):  # type: ignore[no-untyped-def]
    """The float32 of these bits of a float16."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


def _pointer(context: Any, builder: Any, signature: Any, args: Any, vector_type: Any = _FLOATS) -> Any:
    """Where the vector is that begins at element ``args[1]`` of array ``args[0]``."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), vector_type.as_pointer())


def _splat(builder: Any, scalar: Any, vector_type: Any) -> Any:
    first = builder.insert_element(ir.Constant(vector_type, ir.Undefined), scalar, _INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INT, vector_type.count), None))


def _signed(context: Any, builder: Any, signature: Any, args: Any, position: int) -> Any:
    """Sixteen times the scale after argument ``position``, which holds their signs from bit ``args[1]`` on."""
    signs, scale = args[position : position + 2]
    array = context.make_array(signature.args[position])(context, builder, signs)
    pointer = builder.gep(array.data, [builder.lshr(args[1], args[1].type(3))])
    bits = builder.load(builder.bitcast(pointer, _MANY_BITS.as_pointer()), align=1, typ=_MANY_BITS)
    plus, minus = _splat(builder, scale, _MANY_FLOATS), _splat(builder, builder.fneg(scale), _MANY_FLOATS)
    return builder.select(bits, minus, plus)
