"""Products of small matrices, with sixteen columns of one in each vector register (CPU, numba).

    product        C[m][r]  = start[m] + sum_k A[k][m] B[k][r]    m < count, r < width, k < depth
    added_product  C[m][r] += sum_k A[k][m] B[k][r]

Tiles of eight m by thirty-two r stay in registers during the loop over k. One thread reaches the rate of a large
matrix product this way, and the matrices of a pair of fields stay in the first-level cache for the next operation.

A matrix is a tuple of `pointer`, index of the first number, and strides: for C from m to m + 1, for B from k to k + 1
(r has stride 1 in both), for A from k to k + 1 and from m to m + 1. `start` is pointer and index, or None for zeros.
`width` is a multiple of 16. A and B may hold words of two bfloat16 (`halves`); k then counts words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fieldwise.loops.halves import WORDS, dot
from fieldwise.loops.lanes import FAST, LANES, lanes_of, spread_number

TALL, VECTORS = 8, 2


@dataclass
class Writer:
    """Writes the instructions of one product; indices are values in LLVM's code."""

    builder: Any
    kind: Any  # of C's numbers
    words: bool
    c: list[Any]
    start: list[Any] | None  # None: zeros
    added: bool  # whether sums start from C itself
    a: list[Any]
    b: list[Any]
    depth: Any

    def write(self, count: Any, width: Any) -> None:
        for vectors, r in self._parts(width, VECTORS, LANES):
            for tall, m in self._parts(count, TALL, 1):
                self._tile(tall, vectors, m, r)

    def _parts(self, size: Any, most: int, unit: int) -> Iterator[tuple[int, Any]]:
        """Loops over `size` in steps of `most` units, then takes the rest by halves: yields (units, index) for each."""
        builder, whole = self.builder, ir.Constant(size.type, ~(most * unit - 1))
        full = builder.and_(size, whole)
        with cgutils.for_range_slice(builder, size.type(0), full, size.type(most * unit), size.type) as (index, _):  # type: ignore[no-untyped-call, unused-ignore]
            yield most, index
        done = full
        while most > 1:
            most //= 2
            there = builder.and_(size, size.type(most * unit))
            with builder.if_then(builder.icmp_signed("!=", there, size.type(0))):
                yield most, done
            done = builder.add(done, there)

    def _tile(self, tall: int, vectors: int, m: Any, r: Any) -> None:
        builder, vector, align = self.builder, lanes_of(self.kind), self.kind.bitwidth // 8
        (c, c_at, c_step), (a, a_at, a_k, a_m), (b, b_at, b_step) = self.c, self.a, self.b
        places = [(i, n) for i in range(tall) for n in range(vectors)]

        def place(base: Any, *terms: Any) -> Any:
            index = terms[0]
            for term in terms[1:]:
                index = builder.add(index, term)
            return cgutils.gep_inbounds(builder, base, index)  # type: ignore[no-untyped-call, unused-ignore]

        def lanes(base: Any, n: int, *terms: Any, of: Any = vector) -> Any:
            """A pointer to the `n`-th vector of LANES numbers from `base` + r + `terms` on; `of` is its type."""
            return builder.bitcast(place(base, r, r.type(n * LANES), *terms), of.as_pointer())

        def row(i: int) -> Any:
            return builder.mul(builder.add(m, m.type(i)), c_step)

        # Allocated in the function's first block, where the compiler turns them into registers.
        sums = {at: cgutils.alloca_once(builder, vector) for at in places}  # type: ignore[no-untyped-call, unused-ignore]
        for i, n in places:
            if self.added:
                value = builder.load(lanes(c, n, c_at, row(i)), align=align)
            elif self.start is None:
                value = ir.Constant(vector, None)
            else:
                value = spread_number(builder, builder.load(place(*self.start, m, m.type(i))))
            builder.store(value, sums[i, n])
        with cgutils.for_range(builder, self.depth) as loop:  # type: ignore[no-untyped-call, unused-ignore]
            by_b, by_a = builder.mul(loop.index, b_step), builder.mul(loop.index, a_k)
            of = WORDS if self.words else vector
            held = [builder.load(lanes(b, n, b_at, by_b, of=of), align=align) for n in range(vectors)]
            for i in range(tall):
                number = builder.load(place(a, a_at, by_a, builder.mul(builder.add(m, m.type(i)), a_m)))
                many = spread_number(builder, number)
                for n in range(vectors):
                    builder.store(self._added(builder.load(sums[i, n]), held[n], many), sums[i, n])
        for i, n in places:
            builder.store(builder.load(sums[i, n]), lanes(c, n, c_at, row(i)), align=align)

    def _added(self, total: Any, one: Any, two: Any) -> Any:
        if self.words:
            return dot(self.builder, total, one, two)
        return self.builder.fadd(total, self.builder.fmul(one, two, flags=FAST), flags=FAST)


def _write(builder: Any, kinds: list[Any], parts: list[Any], start: Any, added: bool, sizes: list[Any]) -> None:
    c, a, b = (cgutils.unpack_tuple(builder, part) for part in parts)  # type: ignore[no-untyped-call, unused-ignore]
    words = kinds[2][0].dtype == types.uint32
    Writer(builder, kinds[0][0].dtype, words, c, start, added, a, b, sizes[0]).write(*sizes[1:])


def _product(typing: Any, c: Any, start: Any, a: Any, b: Any, depth: Any, count: Any, width: Any) -> Any:
    """product((c, at, m_step), (start, at) or None, (a, at, k_step, m_step), (b, at, k_step), depth, count, width)"""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        fresh = isinstance(start, types.NoneType)
        place = None if fresh else cgutils.unpack_tuple(builder, args[1])  # type: ignore[no-untyped-call, unused-ignore]
        _write(builder, [c, a, b], [args[0], *args[2:4]], place, False, args[4:])
        return context.get_dummy_value()

    return types.void(c, start, a, b, *[types.intp] * 3), code


def _added_product(typing: Any, c: Any, a: Any, b: Any, depth: Any, count: Any, width: Any) -> Any:
    """added_product((c, at, m_step), (a, at, k_step, m_step), (b, at, k_step), depth, count, width)"""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write(builder, [c, a, b], args[:3], None, True, args[3:])
        return context.get_dummy_value()

    return types.void(c, a, b, *[types.intp] * 3), code


product: Any = intrinsic(_product)
added_product: Any = intrinsic(_added_product)
