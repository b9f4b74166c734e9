"""Adam on the touched rows of a table, one visit to each (CPU, numba).

With g the sum of a row's gradients and n the steps since it moved last: m = beta1^n m + (1 - beta1) g,
s = beta2^n s + (1 - beta2) g^2, w = w - rate m / (sqrt(s) + eps). The plain version is optim.Adam.update on
gathered rows.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from fieldwise.loops.instructions import pointer, prefetch_second
from fieldwise.loops.lanes import LANES, load, store
from fieldwise.optim.moves import ADAM, LAZY_ADAM, decays, moved

AHEAD = 16  # rows lie far apart: each is prefetched this many rows before it is needed


@njit(cache=True, nogil=True, inline="always")
def ask(table: Any, at: Any, dim: Any) -> None:
    """Asks for a row's first and last number; with vectors of up to 32 numbers no line lies between."""
    prefetch_second(table, at)
    prefetch_second(table, at + dim - 1)


@njit(cache=True, nogil=True, inline="always")
def summed(values: Any, places: Any, start: Any, end: Any, dim: Any, here: Any, count: Any) -> Any:
    """Numbers here ... of the sum of a row's gradients, in the order of the batch."""
    g = load(values, places[start] * dim + here, count)
    for k in range(start + 1, end):
        g = g + load(values, places[k] * dim + here, count)
    return g


@njit(cache=True, nogil=True, inline="always", error_model="numpy")
def move(
    to: Any, row: Any, dim: Any, count: Any, kept: Any, values: Any, places: Any, start: Any, end: Any,
    weight: Any, mean: Any, square: Any, numbers: Any,
) -> None:  # fmt: skip
    """Moves one row, `count` numbers at a time. The last ones reach back into those before them (see moves.py)."""
    at, last, here, more = row * dim, dim - count, 0, True
    w, m, s = load(weight, at, count), load(mean, at, count), load(square, at, count)
    while more:
        g = summed(values, places, start, end, dim, here, count)
        new = moved(LAZY_ADAM, to, w, m, s, g, kept[0], kept[1], numbers)
        there, more = min(here + LANES, last), here < last
        if more:
            w, m, s = load(weight, at + there, count), load(mean, at + there, count), load(square, at + there, count)
        store(weight, at + here, count, new[0])
        store(mean, at + here, count, new[1])
        store(square, at + here, count, new[2])
        here = there


@njit(cache=True, nogil=True, error_model="numpy")
def adam_rows(
    unique: Any, places: Any, starts: Any, low: Any, high: Any, weights: Any, means: Any, squares: Any, last: Any,
    gradients: Any, powers: Any, numbers: Any,
) -> None:  # fmt: skip
    """Moves rows unique[low:high] of tables (N, D); an empty `last` means that moments decay by one step alone.

    `places` of `gradients` (M, D) are sorted by row; those of row unique[u] begin at starts[u]. `numbers` are those of
    moves.py.
    """
    dim, to, all_rows = weights.shape[1], weights.dtype.type, len(unique)
    weight, mean, square, values = pointer(weights), pointer(means), pointer(squares), pointer(gradients)
    clock, known, flat = pointer(last), len(powers), pointer(powers)
    kind = ADAM if len(last) else LAZY_ADAM
    for u in range(low, high):
        if u + AHEAD < high:
            there = unique[u + AHEAD] * dim
            ask(weight, there, dim)
            ask(mean, there, dim)
            ask(square, there, dim)
            ask(values, places[starts[u + AHEAD]] * dim, dim)
            if len(last):
                prefetch_second(clock, unique[u + AHEAD])
        row, start, end = unique[u], starts[u], starts[u + 1] if u + 1 < all_rows else len(places)
        kept = decays(kind, to, clock, row, numbers, flat, known)
        # Two calls: where all sixteen are known to be meant, the processor need not be told which.
        if dim >= LANES:
            move(to, row, dim, LANES, kept, values, places, start, end, weight, mean, square, numbers)
        else:
            move(to, row, dim, dim, kept, values, places, start, end, weight, mean, square, numbers)
