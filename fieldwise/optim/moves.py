"""One step of the optimisers on sixteen numbers at once: the formulas of optim/adam.py, adagrad.py and ftrl.py."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numba import njit

from fieldwise.loops.lanes import LANES, larger, load, root, smaller, spread, store, where_zero, with_sign

ADAM, LAZY_ADAM, ADAGRAD, FTRL = 0, 1, 2, 3

# What numba alone has a type for: the number type of a table as a function, a pointer to a number of an array
# (loops/instructions.py), a number of that type, sixteen numbers (loops/lanes.py).
Cast: TypeAlias = Any
Pointer: TypeAlias = Any
Number: TypeAlias = Any
Lanes: TypeAlias = Any


class Numbers(NamedTuple):
    """The numbers of the coming step, the first of which is step 1. What `one`, `two` and `last` are:

             one      two      last
    Adam     beta1    beta2    eps
    AdaGrad  initial  unused   eps
    FTRL     l1       l2       beta
    """

    step: int
    one: float
    two: float
    rate: float
    last: float


class Gradient(NamedTuple):
    """The gradient of a row with weights w: times along[start ...] + (shrink - minus less) w."""

    along: Pointer
    start: int
    times: Number
    less: Pointer
    minus: Number
    shrink: Number


@njit(cache=True, nogil=True, inline="always")
def decays(
    kind: int, to: Cast, clock: Pointer, place: int, numbers: Numbers, powers: Pointer, known: int
) -> tuple[Number, Number]:
    """What Adam keeps of a row's moments, beta^(steps since it moved last); sets the row's clock to this step.

    `powers` are those of both betas for gaps less than `known`.
    """
    keep1, keep2 = to(numbers.one), to(numbers.two)
    if kind == ADAM:
        gap = numbers.step - clock[place]
        clock[place] = numbers.step
        if gap < known:
            keep1, keep2 = to(powers[2 * gap]), to(powers[2 * gap + 1])
        else:
            keep1, keep2 = to(numbers.one**gap), to(numbers.two**gap)
    return keep1, keep2


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def moved(
    kind: int, to: Cast, w: Lanes, one: Lanes, two: Lanes, g: Lanes, kept: tuple[Any, Any], numbers: Numbers
) -> tuple[Lanes, Lanes, Lanes]:
    """Weights and their states after one step along g; AdaGrad has one state, and leaves the other as it is."""
    if kind <= LAZY_ADAM:
        one = one * kept[0] + g * to(1 - numbers.one)
        two = two * kept[1] + g * g * to(1 - numbers.two)
        w = w - one * to(numbers.rate) / (root(two) + to(numbers.last))
    elif kind == ADAGRAD:
        one = one + g * g
        w = w - g * to(numbers.rate) / (root(one + to(numbers.one)) + to(numbers.last))
    else:
        l1, l2, faster, beta = to(numbers.one), to(numbers.two), to(1 / numbers.rate), to(numbers.last)
        zero, most = spread(to(0)), spread(l1)
        # A row that never moved starts at its weight: z such that the formula below gives w.
        z = where_zero(two, where_zero(w, zero, zero - w * (beta * faster + l2) - with_sign(most, w)), one)
        more = two + g * g
        one = z + g - (root(more) - root(two)) * faster * w
        new = (larger(zero - most, smaller(one, most)) - one) / ((root(more) + beta) * faster + l2)
        w, two = where_zero(more, w, new), more
    return w, one, two


@njit(cache=True, nogil=True, inline="always")
def chunk(kind: int, table: Pointer, at: int, wide: int, count: int) -> tuple[Lanes, Lanes, Lanes]:
    """Some weights of a row, and their states behind its `wide` weights."""
    one = load(table, at + wide, count)
    return load(table, at, count), one, load(table, at + 2 * wide, count) if kind != ADAGRAD else one


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def move_row(
    kind: int, to: Cast, wide: int, table: Pointer, at: int, kept: tuple[Any, Any], along: Gradient, numbers: Numbers
) -> None:
    """Moves the row of `wide` weights at table[at], sixteen numbers at a time."""
    # Two loops: where all sixteen are known to be meant, the processor needs no mask.
    if wide >= LANES:
        move_lanes(kind, to, wide, LANES, table, at, kept, along, numbers)
    else:
        move_lanes(kind, to, wide, wide, table, at, kept, along, numbers)


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def move_lanes(
    kind: int, to: Cast, wide: int, count: int, table: Pointer, at: int, kept: tuple[Any, Any], along: Gradient,
    numbers: Numbers,
) -> None:  # fmt: skip
    """`move_row`, `count` numbers at a time.

    The last ones reach back into those before them, so that all lie within the row: memory beyond it is slow to come.
    So what they need is read before those are written.
    """
    last, here, more = wide - count, 0, True
    w, one, two = chunk(kind, table, at, wide, count)
    while more:
        decrease = spread(along.shrink) - load(along.less, here, count) * along.minus
        g = load(along.along, along.start + here, count) * along.times + w * decrease
        new = moved(kind, to, w, one, two, g, kept, numbers)
        there, more = min(here + LANES, last), here < last
        if more:
            w, one, two = chunk(kind, table, at + there, wide, count)
        store(table, at + here, count, new[0])
        store(table, at + here + wide, count, new[1])
        if kind != ADAGRAD:
            store(table, at + here + 2 * wide, count, new[2])
        here = there
