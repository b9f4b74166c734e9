"""Processor instructions for compiled loops that numba does not offer."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BYTES = 64


def _pointer(typing: Any, array: Any) -> Any:
    """pointer(array): the address of a contiguous array's first number; the caller keeps the array alive."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), code  # type: ignore[no-untyped-call, unused-ignore]


def _keep(typing: Any, arrays: Any) -> Any:
    """keep((one, two ...)): does nothing; it stands after the last use of a `pointer` to an array made in the function.

    numba frees an array after the last line that names it, even if a pointer to it is still in use.
    """
    return types.void(arrays), lambda context, builder, signature, args: context.get_dummy_value()


def _asking(to_write: int, keep: int) -> Any:
    """prefetch(pointer, index): fetches the number at `index` into a cache before it is needed."""

    def prefetch(typing: Any, pointer: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = cgutils.gep_inbounds(builder, *args)  # type: ignore[no-untyped-call, unused-ignore]
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            name = "llvm.prefetch.p0"
            ask = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call, unused-ignore]
            builder.call(ask, [builder.bitcast(place, byte), word(to_write), word(keep), word(1)])
            return context.get_dummy_value()

        return types.void(pointer, types.intp), code

    return prefetch


def _matches(typing: Any, data: Any, index: Any, one: Any, other: Any) -> Any:
    """matches(pointer, index, one, other): bit i says whether byte index + i is `one` or `other`, for 64 bytes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.gep_inbounds(builder, *args[:2])  # type: ignore[no-untyped-call, unused-ignore]
        vector, word = ir.VectorType(ir.IntType(8), BYTES), ir.IntType(32)
        found = builder.load(builder.bitcast(place, vector.as_pointer()), align=1)
        masks = []
        for byte in args[2:]:
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), byte, word(0))
            all_of_it = builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(word, BYTES), [0] * BYTES))
            masks.append(builder.icmp_unsigned("==", found, all_of_it))
        return builder.bitcast(builder.or_(*masks), ir.IntType(64))

    return types.uint64(data, types.intp, types.uint8, types.uint8), code


def _word(typing: Any, data: Any, index: Any) -> Any:
    """word(pointer, index): the eight bytes at index as one number, the first byte lowest."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.gep_inbounds(builder, *args)  # type: ignore[no-untyped-call, unused-ignore]
        return builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.intp), code


def _lowest(typing: Any, bits: Any) -> Any:
    """lowest(bits): the position of the lowest bit that is set."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


pointer: Any = intrinsic(_pointer)
keep: Any = intrinsic(_keep)
# Into the first-level cache, to be written; into the second-level cache, which has room for more.
prefetch: Any = intrinsic(_asking(1, 3))
prefetch_second: Any = intrinsic(_asking(0, 2))
matches: Any = intrinsic(_matches)
word: Any = intrinsic(_word)
lowest: Any = intrinsic(_lowest)
