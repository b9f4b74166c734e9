"""Sixteen numbers as one value in compiled loops, so that vector instructions do not depend on the compiler's choice.

The compiler vectorises long loops. A loop over 21 numbers (a vector of 20 and a linear weight) it handles one number
at a time. `load` and `store` take a count: lanes beyond it are 0, and their memory is not touched. They take a
`pointer` to an array's first number, because numba counts references to arrays that are passed on, which costs more
than the arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 16
# Sums may be reordered and fused with products; NaN stays NaN.
FAST = ("reassoc", "contract", "nsz")
WORD = ir.IntType(32)


class Lanes(types.Type):  # type: ignore[misc, unused-ignore]
    """The type of sixteen numbers of one kind."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")  # type: ignore[no-untyped-call, unused-ignore]


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc, unused-ignore]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _vector(kind))  # type: ignore[no-untyped-call, unused-ignore]


def lanes_of(dtype: Any) -> Any:
    """LLVM's type of sixteen numbers of this dtype."""
    return ir.VectorType(ir.DoubleType() if dtype == types.float64 else ir.FloatType(), LANES)


def _vector(kind: Any) -> Any:
    return lanes_of(kind.dtype)


def _call(builder: Any, name: str, result: Any, args: list[Any], **flags: Any) -> Any:
    """Calls an intrinsic function of LLVM."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call, unused-ignore]
    return builder.call(function, args, **flags)


def _suffix(kind: Any) -> str:
    return f"v{LANES}{'f64' if kind.dtype == types.float64 else 'f32'}"


def spread_number(builder: Any, number: Any) -> Any:
    """The same number in all lanes."""
    vector = ir.VectorType(number.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, WORD(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(WORD, LANES), [0] * LANES))


def _place_and_mask(builder: Any, args: Any) -> tuple[Any, Any]:
    place = cgutils.gep_inbounds(builder, args[0], args[1])  # type: ignore[no-untyped-call, unused-ignore]
    most = ir.Constant(args[2].type, LANES)
    count = builder.select(builder.icmp_signed("<", args[2], most), args[2], most)
    numbers = ir.Constant(ir.VectorType(WORD, LANES), list(range(LANES)))
    mask = builder.icmp_signed("<", numbers, spread_number(builder, builder.trunc(count, WORD)))
    return builder.bitcast(place, ir.IntType(8).as_pointer()), mask


def _load(typing: Any, pointer: Any, index: Any, count: Any) -> Any:
    """load(pointer, index, count): the numbers from index on; bfloat16 becomes float32."""
    result = Lanes(types.float32 if _is_half(pointer) else pointer.dtype)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place, mask = _place_and_mask(builder, args)
        vector, name = _stored(pointer)
        args = [place, WORD(pointer.dtype.bitwidth // 8), mask, ir.Constant(vector, None)]
        found = _call(builder, f"llvm.masked.load.{name}.p0", vector, args)
        return _widened(builder, found) if _is_half(pointer) else found

    return result(pointer, types.intp, types.intp), code


def _store(typing: Any, pointer: Any, index: Any, count: Any, lanes: Any) -> Any:
    """store(pointer, index, count, lanes): writes the first `count` lanes from index on, rounded for bfloat16."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place, mask = _place_and_mask(builder, args)
        value = _rounded(builder, args[3]) if _is_half(pointer) else args[3]
        align = WORD(pointer.dtype.bitwidth // 8)
        _call(builder, f"llvm.masked.store.{_stored(pointer)[1]}.p0", ir.VoidType(), [value, place, align, mask])
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.intp, lanes), code


def _is_half(pointer: Any) -> bool:
    """Whether it points to bfloat16, which numba lacks: its bits come as uint16."""
    return bool(pointer.dtype == types.uint16)


def _stored(pointer: Any) -> tuple[Any, str]:
    """LLVM's type of sixteen numbers in memory, and the name of that type in intrinsics."""
    if _is_half(pointer):
        return ir.VectorType(ir.IntType(16), LANES), f"v{LANES}i16"
    lanes = Lanes(pointer.dtype)
    return _vector(lanes), _suffix(lanes)


def _widened(builder: Any, bits: Any) -> Any:
    """A bfloat16 is the upper half of a float32."""
    words = ir.VectorType(WORD, LANES)
    upper = builder.shl(builder.zext(bits, words), ir.Constant(words, [16] * LANES))
    return builder.bitcast(upper, ir.VectorType(ir.FloatType(), LANES))


def _rounded(builder: Any, lanes: Any) -> Any:
    """Rounds to the nearest bfloat16, ties to even: adds half a step, less one bit where the upper half is even."""
    words = ir.VectorType(WORD, LANES)
    bits, sixteen = builder.bitcast(lanes, words), ir.Constant(words, [16] * LANES)
    odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(words, [1] * LANES))
    near = builder.add(builder.add(bits, odd), ir.Constant(words, [0x7FFF] * LANES))
    return builder.trunc(builder.lshr(near, sixteen), ir.VectorType(ir.IntType(16), LANES))


def _blocks(*chosen: int) -> Any:
    """blocks(one, two): four blocks of four lanes; 0 to 3 choose from one, 4 to 7 from two."""
    places = [4 * block + lane for block in chosen for lane in range(4)]

    def typed(typing: Any, one: Any, two: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.shuffle_vector(*args, ir.Constant(ir.VectorType(WORD, LANES), places))

        return one(one, two), code

    return intrinsic(typed)


def _spread_out(typing: Any, number: Any) -> Any:
    """spread(number): the number in all lanes."""
    return Lanes(number)(number), lambda context, builder, signature, args: spread_number(builder, args[0])


def _total(typing: Any, lanes: Any, first: Any) -> Any:
    """total(lanes, first): the sum of the lanes from `first` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = _vector(lanes).element
        name, zero = f"llvm.vector.reduce.fadd.{_suffix(lanes)}", ir.Constant(number, 0.0)
        lane = ir.Constant(ir.VectorType(WORD, LANES), list(range(LANES)))
        meant = builder.icmp_signed(">=", lane, spread_number(builder, builder.trunc(args[1], WORD)))
        kept = builder.select(meant, args[0], ir.Constant(args[0].type, None))
        return _call(builder, name, number, [zero, kept], fastmath=FAST)

    return lanes.dtype(lanes, types.intp), code


def _where_zero(typing: Any, lanes: Any, then: Any, other: Any) -> Any:
    """where_zero(lanes, then, other): `then` where lanes are 0, else `other`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("==", args[0], ir.Constant(args[0].type, None)), args[1], args[2])

    return lanes(lanes, lanes, lanes), code


def _of_llvm(name: str, takes: int) -> Any:
    """An intrinsic function of LLVM that takes one or two lanes."""

    def typed(lanes: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _call(builder, f"llvm.{name}.{_suffix(lanes)}", _vector(lanes), list(args), fastmath=FAST)

        return lanes(*[lanes] * takes), code

    if takes == 1:
        return intrinsic(lambda typing, lanes: typed(lanes))
    return intrinsic(lambda typing, one, two: typed(one))


def _operator(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    """An operator such as + for two lanes, or for lanes and a number."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=FAST)

    apply: Any = intrinsic(lambda typing, one, two: (one(one, two), code))

    @overload(symbol, inline="always", strict=False)  # type: ignore[untyped-decorator, unused-ignore]
    def typed(one: Any, two: Any) -> Any:
        if isinstance(one, Lanes) and isinstance(two, Lanes):
            return lambda one, two: apply(one, two)
        if isinstance(one, Lanes) and two == one.dtype:
            return lambda one, two: apply(one, spread(two))
        if isinstance(two, Lanes) and one == two.dtype:
            return lambda one, two: apply(spread(one), two)
        return None


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_symbol, _instruction)

lower: Any = _blocks(0, 1, 4, 5)
upper: Any = _blocks(2, 3, 6, 7)
even: Any = _blocks(0, 2, 4, 6)
odd: Any = _blocks(1, 3, 5, 7)
without_first: Any = _blocks(1, 2, 3, 3)
without_second: Any = _blocks(0, 2, 3, 3)
without_third: Any = _blocks(0, 1, 3, 3)
load: Any = intrinsic(_load)
store: Any = intrinsic(_store)
spread: Any = intrinsic(_spread_out)
total: Any = intrinsic(_total)
where_zero: Any = intrinsic(_where_zero)
root: Any = _of_llvm("sqrt", 1)
smaller: Any = _of_llvm("minnum", 2)
larger: Any = _of_llvm("maxnum", 2)
with_sign: Any = _of_llvm("copysign", 2)


@njit(cache=True, nogil=True, inline="always")
def turned(one: Any, two: Any, three: Any, last: Any) -> Any:
    """Transposes four values of four blocks: the first blocks of all four, then the second ones, and so on."""
    low, high, low_too, high_too = lower(one, two), upper(one, two), lower(three, last), upper(three, last)
    return even(low, low_too), odd(low, low_too), even(high, high_too), odd(high, high_too)
