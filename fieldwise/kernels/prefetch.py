"""Asking memory for a number before it is needed: an instruction of the processor that numba has no word for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _prefetch(typing: Any, array: Any, index: Any) -> Any:
    """prefetch(array, index): the number at `index` of a contiguous array, counted flat, will be read and written."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = cgutils.gep_inbounds(builder, data, args[1])  # type: ignore[no-untyped-call, unused-ignore]
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        name = "llvm.prefetch.p0"
        ask = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call, unused-ignore]
        to_write, keep, data_cache = word(1), word(3), word(1)
        builder.call(ask, [builder.bitcast(place, byte), to_write, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.intp), code


prefetch: Any = intrinsic(_prefetch)
