"""Words of two bfloat16, which processors with avx512_bf16 multiply pairwise and add to a float32.

A word of a matrix holds the numbers k and k + 1 of the index that is summed over, which halves the steps of `tiles`.
The packing functions do nothing where no words are wanted and the numbers are used themselves: loops are written once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from fieldwise.loops.instructions import pointer
from fieldwise.loops.lanes import LANES, lanes_of, load

WORDS = ir.VectorType(ir.IntType(32), LANES)


@cache
def available() -> bool:
    """Whether this processor multiplies such words."""
    return bool(binding.get_host_cpu_features().get("avx512bf16"))


def dot(builder: Any, total: Any, one: Any, two: Any) -> Any:
    """total + the products of both halves, for sixteen words."""
    kind = ir.FunctionType(total.type, [total.type, WORDS, WORDS])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call, unused-ignore]
    return builder.call(function, [total, one, two])


def _rounded(places: list[int]) -> Any:
    """write(words, index, one, two): rounds both to bfloat16, and writes the thirty-two in the order of `places`."""

    def typed(typing: Any, words: Any, index: Any, one: Any, two: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            numbers, halves = lanes_of(types.float32), ir.VectorType(ir.IntType(16), 2 * LANES)
            kind, name = ir.FunctionType(halves, [numbers, numbers]), "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
            function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call, unused-ignore]
            found = builder.call(function, [args[3], args[2]])
            order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * LANES), places)
            place = cgutils.gep_inbounds(builder, args[0], args[1])  # type: ignore[no-untyped-call, unused-ignore]
            value = builder.bitcast(builder.shuffle_vector(found, found, order), WORDS)
            builder.store(value, builder.bitcast(place, WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(words, types.intp, one, two), code

    return intrinsic(typed)


# `pair`: number n of one and number n of two share a word. `line_up`: neighbours share a word.
pair: Any = _rounded([half * LANES + lane for lane in range(LANES) for half in range(2)])
line_up: Any = _rounded(list(range(2 * LANES)))


def room(numbers: Any, like: Any) -> Any:
    """Room for the words of numbers (n, m), two rows in one: (n / 2, m); `numbers` itself if `like` has no words."""


def room_along(numbers: Any, like: Any) -> Any:
    """The same, two columns in one: (n, m / 2)."""


def pack(numbers: Any, words: Any) -> None:
    """Fills `room`, if m is a multiple of 16; an odd n is padded with zeros."""


def pack_along(numbers: Any, words: Any) -> None:
    """Fills `room_along`, if m is a multiple of 32."""


@overload(room, inline="always", strict=False)  # type: ignore[untyped-decorator, unused-ignore]
def _room(numbers: Any, like: Any) -> Any:
    if like.dtype != types.uint32:
        return lambda numbers, like: numbers
    return lambda numbers, like: np.zeros(((len(numbers) + 1) // 2, numbers.shape[1]), np.uint32)


@overload(room_along, inline="always", strict=False)  # type: ignore[untyped-decorator, unused-ignore]
def _room_along(numbers: Any, like: Any) -> Any:
    if like.dtype != types.uint32:
        return lambda numbers, like: numbers
    return lambda numbers, like: np.zeros((len(numbers), numbers.shape[1] // 2), np.uint32)


@overload(pack, strict=False)  # type: ignore[untyped-decorator, unused-ignore]
def _pack(numbers: Any, words: Any) -> Any:
    if words.dtype != types.uint32:
        return lambda numbers, words: None

    def packed(numbers: Any, words: Any) -> None:
        source, target, wide = pointer(numbers), pointer(words), numbers.shape[1]
        for n in range(len(words)):
            more = LANES if 2 * n + 1 < len(numbers) else 0
            for c in range(0, wide, LANES):
                one, two = load(source, 2 * n * wide + c, LANES), load(source, (2 * n + 1) * wide + c, more)
                pair(target, n * wide + c, one, two)

    return packed


@overload(pack_along, strict=False)  # type: ignore[untyped-decorator, unused-ignore]
def _pack_along(numbers: Any, words: Any) -> Any:
    if words.dtype != types.uint32:
        return lambda numbers, words: None

    def packed(numbers: Any, words: Any) -> None:
        source, target = pointer(numbers), pointer(words)
        for n in range(0, numbers.size, 2 * LANES):
            line_up(target, n // 2, load(source, n, LANES), load(source, n + LANES, LANES))

    return packed
