"""Asking memory for a number before it is needed: an instruction of the processor that numba has no word for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _prefetch(typing: Any, pointer: Any, index: Any) -> Any:
    """prefetch(pointer, index): the number at `index` will be read and written."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.gep_inbounds(builder, *args)  # type: ignore[no-untyped-call, unused-ignore]
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        name = "llvm.prefetch.p0"
        ask = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call, unused-ignore]
        to_write, keep, data_cache = word(1), word(3), word(1)
        builder.call(ask, [builder.bitcast(place, byte), to_write, keep, data_cache])
        return context.get_dummy_value()

    return types.void(pointer, types.intp), code


prefetch: Any = intrinsic(_prefetch)
