"""Adam on the touched rows of a table, one visit to each (CPU, numba).

With g the sum of a row's gradients and n the steps since it moved last: m = beta1^n m + (1 - beta1) g,
s = beta2^n s + (1 - beta2) g^2, w = w - rate m / (sqrt(s) + eps). The plain version is optim.Adam.update on
gathered rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fieldwise.loops.instructions import pointer, prefetch_second
from fieldwise.loops.lanes import LANES, load, store
from fieldwise.optim.moves import ADAM, LAZY_ADAM, Cast, Lanes, Number, Numbers, Pointer, decays, moved

AHEAD = 16  # rows lie far apart: each is prefetched this many rows before it is needed


class Order(NamedTuple):
    """The gradients' places sorted by row: those of row unique[u] begin at places[starts[u]]."""

    unique: NDArray[np.int64]
    places: NDArray[np.int64]
    starts: NDArray[np.int64]


class Tables(NamedTuple):
    """Weights (N, D), their moments, the last step (N,) of each row, and gradients (M, D).

    An empty `last` means that moments decay by one step alone.
    """

    weight: NDArray[np.floating]
    mean: NDArray[np.floating]
    square: NDArray[np.floating]
    last: NDArray[np.int32]
    gradients: NDArray[np.floating]


@njit(cache=True, nogil=True, inline="always")
def ask(table: Pointer, at: int, dim: int) -> None:
    """Prefetches a row's first and last number; with vectors of up to 32 numbers no line lies between."""
    prefetch_second(table, at)
    prefetch_second(table, at + dim - 1)


@njit(cache=True, nogil=True, inline="always")
def summed(values: Pointer, places: NDArray[np.int64], start: int, end: int, dim: int, here: int, count: int) -> Lanes:
    """Numbers here ... of the sum of a row's gradients, in the order of the batch."""
    g = load(values, places[start] * dim + here, count)
    for k in range(start + 1, end):
        g = g + load(values, places[k] * dim + here, count)
    return g


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def move(
    to: Cast, row: int, dim: int, count: int, kept: tuple[Number, Number], values: Pointer, places: NDArray[np.int64],
    start: int, end: int, weight: Pointer, mean: Pointer, square: Pointer, numbers: Numbers,
) -> None:  # fmt: skip
    """Moves one row, `count` numbers at a time. The last ones reach back into those before them (see moves.py)."""
    at, last, here, more = row * dim, dim - count, 0, True
    w, m, s = load(weight, at, count), load(mean, at, count), load(square, at, count)
    while more:
        g = summed(values, places, start, end, dim, here, count)
        new = moved(LAZY_ADAM, to, w, m, s, g, kept, numbers)
        there, more = min(here + LANES, last), here < last
        if more:
            w, m, s = load(weight, at + there, count), load(mean, at + there, count), load(square, at + there, count)
        store(weight, at + here, count, new[0])
        store(mean, at + here, count, new[1])
        store(square, at + here, count, new[2])
        here = there


@njit(cache=True, nogil=True, error_model="numpy")
def adam_rows(order: Order, low: int, high: int, tables: Tables, powers: NDArray[np.float64], numbers: Numbers) -> None:
    """Moves rows unique[low:high] by the sums of their gradients; `powers` are those of both betas."""
    unique, places, starts = order.unique, order.places, order.starts
    dim, to, all_rows = tables.weight.shape[1], tables.weight.dtype.type, len(unique)
    weight, mean, square = pointer(tables.weight), pointer(tables.mean), pointer(tables.square)
    values, clock, flat, known = pointer(tables.gradients), pointer(tables.last), pointer(powers), len(powers)
    kind = ADAM if len(tables.last) else LAZY_ADAM
    for u in range(low, high):
        if u + AHEAD < high:
            there = unique[u + AHEAD] * dim
            ask(weight, there, dim)
            ask(mean, there, dim)
            ask(square, there, dim)
            ask(values, places[starts[u + AHEAD]] * dim, dim)
            if kind == ADAM:
                prefetch_second(clock, unique[u + AHEAD])
        row, start, end = unique[u], starts[u], starts[u + 1] if u + 1 < all_rows else len(places)
        kept = decays(kind, to, clock, row, numbers, flat, known)
        # Two calls: where all sixteen are known to be meant, the processor needs no mask.
        if dim >= LANES:
            move(to, row, dim, LANES, kept, values, places, start, end, weight, mean, square, numbers)
        else:
            move(to, row, dim, dim, kept, values, places, start, end, weight, mean, square, numbers)
