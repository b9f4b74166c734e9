"""One step of the optimisers on sixteen numbers at once: the formulas of optim/adam.py, adagrad.py and ftrl.py.

`numbers` are those of the coming step: its number, then for Adam beta1, beta2, rate and eps, for AdaGrad the initial
sum, nothing, rate and eps, for FTRL l1, l2, rate and beta.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from fieldwise.loops.lanes import LANES, larger, load, root, smaller, spread, store, where_zero, with_sign

ADAM, LAZY_ADAM, ADAGRAD, FTRL = 0, 1, 2, 3


@njit(cache=True, nogil=True, inline="always")
def decays(kind: Any, to: Any, clock: Any, place: Any, numbers: Any, powers: Any, known: Any) -> Any:
    """What Adam keeps of a row's moments, beta^(steps since it moved last); says in its clock that it moves now.

    `powers` are those of both betas for gaps less than `known`.
    """
    keep1, keep2 = to(numbers[1]), to(numbers[2])
    if kind == ADAM:
        step = int(numbers[0])
        gap = step - clock[place]
        clock[place] = step
        if gap < known:
            keep1, keep2 = to(powers[2 * gap]), to(powers[2 * gap + 1])
        else:
            keep1, keep2 = to(numbers[1] ** gap), to(numbers[2] ** gap)
    return keep1, keep2


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def moved(kind: Any, to: Any, w: Any, one: Any, two: Any, g: Any, keep1: Any, keep2: Any, numbers: Any) -> Any:
    """Weights and their states after one step along g; AdaGrad has one state, and leaves the other as it is."""
    if kind <= LAZY_ADAM:
        one = one * keep1 + g * to(1 - numbers[1])
        two = two * keep2 + g * g * to(1 - numbers[2])
        w = w - one * to(numbers[3]) / (root(two) + to(numbers[4]))
    elif kind == ADAGRAD:
        one = one + g * g
        w = w - g * to(numbers[3]) / (root(one + to(numbers[1])) + to(numbers[4]))
    else:
        l1, l2, faster, beta = to(numbers[1]), to(numbers[2]), to(1 / numbers[3]), to(numbers[4])
        zero, most = spread(to(0)), spread(l1)
        # A row that never moved begins where its weight is: z such that the formula below gives w.
        z = where_zero(two, where_zero(w, zero, zero - w * (beta * faster + l2) - with_sign(most, w)), one)
        more = two + g * g
        one = z + g - (root(more) - root(two)) * faster * w
        new = (larger(zero - most, smaller(one, most)) - one) / ((root(more) + beta) * faster + l2)
        w, two = where_zero(more, w, new), more
    return w, one, two


@njit(cache=True, nogil=True, inline="always")
def chunk(kind: Any, table: Any, at: Any, wide: Any, count: Any) -> Any:
    """Some weights of a row, and their states behind its `wide` weights."""
    one = load(table, at + wide, count)
    return load(table, at, count), one, load(table, at + 2 * wide, count) if kind != ADAGRAD else one


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def move_row(
    kind: Any, to: Any, wide: Any, at: Any, kept: Any, along: Any, start: Any, times: Any, less: Any, minus: Any,
    shrink: Any, table: Any, numbers: Any,
) -> None:  # fmt: skip
    """One step of the row at `at` along times along[start ...] + (shrink - minus less) w, sixteen after sixteen."""
    # Two loops: where all sixteen are known to be meant, the processor need not be told which.
    if wide >= LANES:
        move_lanes(kind, to, wide, LANES, at, kept, along, start, times, less, minus, shrink, table, numbers)
    else:
        move_lanes(kind, to, wide, wide, at, kept, along, start, times, less, minus, shrink, table, numbers)


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def move_lanes(
    kind: Any, to: Any, wide: Any, count: Any, at: Any, kept: Any, along: Any, start: Any, times: Any, less: Any,
    minus: Any, shrink: Any, table: Any, numbers: Any,
) -> None:  # fmt: skip
    """`move_row`, `count` numbers at a time.

    The last ones reach back into those before them, so that all lie within the row: memory beyond it is slow to come.
    So what they need is read before those are written.
    """
    last, here, more = wide - count, 0, True
    w, one, two = chunk(kind, table, at, wide, count)
    while more:
        g = load(along, start + here, count) * times + w * (spread(shrink) - load(less, here, count) * minus)
        new = moved(kind, to, w, one, two, g, kept[0], kept[1], numbers)
        there, more = min(here + LANES, last), here < last
        if more:
            w, one, two = chunk(kind, table, at + there, wide, count)
        store(table, at + here, count, new[0])
        store(table, at + here + wide, count, new[1])
        if kind != ADAGRAD:
            store(table, at + here + 2 * wide, count, new[2])
        here = there
