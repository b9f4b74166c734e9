"""A transposed copy of a matrix, in squares of 16 by 16 numbers that are turned in registers (CPU, numba).

The plain version is x.T.contiguous(), which took two and a half times as long.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import njit
from numba.extending import intrinsic

from fieldwise.loops.instructions import pointer
from fieldwise.loops.lanes import LANES, WORD, load, store, turned


def _in_blocks(*chosen: int) -> Any:
    """shuffle(one, two): of each block of four lanes four are chosen, from 4 on those of two."""
    places = [4 * block + lane % 4 + LANES * (lane // 4) for block in range(4) for lane in chosen]

    def typed(typing: Any, one: Any, two: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.shuffle_vector(*args, ir.Constant(ir.VectorType(WORD, LANES), places))

        return one(one, two), code

    return intrinsic(typed)


low_singles: Any = _in_blocks(0, 4, 1, 5)
high_singles: Any = _in_blocks(2, 6, 3, 7)
low_pairs: Any = _in_blocks(0, 1, 4, 5)
high_pairs: Any = _in_blocks(2, 3, 6, 7)


@njit(cache=True, nogil=True, inline="always")
def four(x: Any, at: Any, wide: Any, count: Any) -> Any:
    """Four rows from `at` on -> four values: block m of number k holds their numbers 4 m + k."""
    a, b = load(x, at, count), load(x, at + wide, count)
    c, d = load(x, at + 2 * wide, count), load(x, at + 3 * wide, count)
    low, low_too, high, high_too = low_singles(a, b), low_singles(c, d), high_singles(a, b), high_singles(c, d)
    return low_pairs(low, low_too), high_pairs(low, low_too), low_pairs(high, high_too), high_pairs(high, high_too)


@njit(cache=True, nogil=True, inline="always")
def square(x: Any, at: Any, wide: Any, count: Any, y: Any, to: Any, tall: Any) -> None:
    """Turns sixteen rows of up to sixteen numbers, from `at` of x (rows of `wide`) to `to` of y (rows of `tall`)."""
    one, two = four(x, at, wide, count), four(x, at + 4 * wide, wide, count)
    three, last = four(x, at + 8 * wide, wide, count), four(x, at + 12 * wide, wide, count)
    columns = (
        turned(one[0], two[0], three[0], last[0]),
        turned(one[1], two[1], three[1], last[1]),
        turned(one[2], two[2], three[2], last[2]),
        turned(one[3], two[3], three[3], last[3]),
    )
    for k in range(4):
        for m in range(4):
            if 4 * m + k < count:
                store(y, to + (4 * m + k) * tall, LANES, columns[k][m])


@njit(cache=True, nogil=True)
def turn(x: Any, low: Any, high: Any, y: Any) -> None:
    """Fills columns low..high of y (K, B) by the rows of x (B, K)."""
    tall, wide = x.shape
    xs, ys = pointer(x), pointer(y)
    whole = low + (high - low) // LANES * LANES
    for b in range(low, whole, LANES):
        for c in range(0, wide - wide % LANES, LANES):
            square(xs, b * wide + c, wide, LANES, ys, c * tall + b, tall)
        c = wide - wide % LANES
        if c < wide:
            square(xs, b * wide + c, wide, wide - c, ys, c * tall + b, tall)
    for b in range(whole, high):
        for c in range(wide):
            y[c, b] = x[b, c]
