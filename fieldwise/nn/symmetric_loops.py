"""The loops of boosting symmetric trees (CPU, numba).

Columns are bins (H, n); column c's bins are numbers `starts[c]` to `starts[c + 1]` of all. A tree's 2^d leaves after d
splits each have sums (slope and weight of their rows) for each bin: found (leaves, bins, 2).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bins = NDArray[np.uint8]
Leaves = NDArray[np.uint16]
TINY = 1e-100


@njit(cache=True, nogil=True, error_model="numpy")
def add_rows(
    bins: Bins, rows: NDArray[np.int32], leaves: Leaves, first: int, starts: NDArray[np.int64], pulls: Floats,
    low: int, high: int, found: Floats,
) -> None:  # fmt: skip
    """Adds the pulls (m, 2) of rows (m,) to the sums of their bins in columns low..high, in leaf first + their own."""
    for column in range(low, high):
        own, start = bins[column], starts[column]
        for place in range(len(rows)):
            leaf, at = first + leaves[place], start + own[rows[place]]
            found[leaf, at, 0] += pulls[place, 0]
            found[leaf, at, 1] += pulls[place, 1]


@njit(cache=True, nogil=True, error_model="numpy")
def part_leaves(found: Floats, size: int, right: bool, low: int, high: int) -> None:
    """The sums of both halves of leaves 0..size, in bins low..high: those of one half lie in leaves size..2 size.

    `right`: it is the half that goes right, whose place that is; the other half is what is left of the whole.
    """
    for leaf in range(size):
        for at in range(low, high):
            for sum_ in range(2):
                half, rest = found[size + leaf, at, sum_], found[leaf, at, sum_] - found[size + leaf, at, sum_]
                found[size + leaf, at, sum_] = half if right else rest
                found[leaf, at, sum_] = rest if right else half


@njit(cache=True, nogil=True, error_model="numpy")
def best_split(
    found: Floats, size: int, starts: NDArray[np.int64], single: NDArray[np.bool_], l2: float, noise: Floats,
    low: int, high: int,
) -> tuple[float, int, int]:  # fmt: skip
    """The best split of all leaves 0..size at once, in columns low..high: its score, column and bin.

    Rows of a later bin go right, or, where the column is `single`, rows of that bin. The score is the cosine of the
    slopes with what leaves would add, plus the noise of the bin.
    """
    widest = 0
    for column in range(low, high):
        widest = max(widest, starts[column + 1] - starts[column])
    gained, squared, one, of_one = np.empty(widest), np.empty(widest), np.empty(widest), np.empty(widest)
    best, best_column, best_bin = -math.inf, -1, -1
    for column in range(low, high):
        start, count = starts[column], starts[column + 1] - starts[column]
        gained[:count] = 0
        squared[:count] = TINY
        for leaf in range(size):
            slope, weight = 0.0, 0.0
            for k in range(count):
                slope += found[leaf, start + k, 0]
                weight += found[leaf, start + k, 1]
                # The side of a bin and those before it; or of a bin alone.
                one[k] = found[leaf, start + k, 0] if single[column] else slope
                of_one[k] = found[leaf, start + k, 1] if single[column] else weight
            # In a loop of its own, which the compiler turns into one over several bins at once.
            for k in range(count):
                # What is left of a sum may be rounding.
                own, of_own, other, of_other = one[k], max(of_one[k], 0.0), slope - one[k], max(weight - of_one[k], 0.0)
                step, back = own / (of_own + l2), other / (of_other + l2)
                gained[k] += step * own + back * other
                squared[k] += step * step * of_own + back * back * of_other
        for k in range(count if single[column] else count - 1):
            score = gained[k] / math.sqrt(squared[k]) + noise[start + k]
            if score > best:
                best, best_column, best_bin = score, column, k
    return best, best_column, best_bin


@njit(cache=True, nogil=True, error_model="numpy")
def go_right(own: Bins, at: int, single: bool, bit: int, leaves: Leaves) -> None:
    """Sets a bit of the leaves of all rows that a split of this column at this bin sends right."""
    for row in range(len(own)):
        if own[row] == at if single else own[row] > at:
            leaves[row] |= bit


@njit(cache=True, nogil=True, error_model="numpy")
def leaf_values(
    leaves: Leaves, labels: Floats, weights: Floats, logits: Floats, l2: float, steps: int, near: float, found: Floats
) -> None:
    """What each leaf (L,) adds to the logits of its rows: Newton steps on their log loss, until one is `near` 0."""
    ends, order = np.zeros(len(found) + 1, np.int64), np.empty(len(leaves), np.int64)
    for row in range(len(leaves)):
        ends[leaves[row] + 1] += 1
    for leaf in range(len(found)):
        ends[leaf + 1] += ends[leaf]
    places = ends[:-1].copy()
    for row in range(len(leaves)):
        order[places[leaves[row]]] = row
        places[leaves[row]] += 1
    # Leaf by leaf: one of a single class comes to no end, and must not keep the others going.
    for leaf in range(len(found)):
        added = 0.0
        for _ in range(steps):
            slope, curve = 0.0, 0.0
            for place in range(ends[leaf], ends[leaf + 1]):
                row = order[place]
                p = 1 / (1 + math.exp(-(logits[row] + added)))
                slope += weights[row] * (labels[row] - p)
                curve += weights[row] * p * (1 - p)
            step = slope / (curve + l2)
            added += step
            if abs(step) < near:
                break
        found[leaf] = added


@njit(cache=True, nogil=True, error_model="numpy")
def scores(
    rows: NDArray[np.float32], columns: NDArray[np.int32], bounds: NDArray[np.float32], single: NDArray[np.bool_],
    values: NDArray[np.float32], found: Floats,
) -> None:  # fmt: skip
    """Adds to the logits (n,) of rows (n, H) what all trees add, one after the other."""
    trees, depth = columns.shape
    for row in range(len(rows)):
        for tree in range(trees):
            leaf = 0
            for level in range(depth):
                value, bound = rows[row, columns[tree, level]], bounds[tree, level]
                if value == bound if single[tree, level] else value > bound:
                    leaf |= 1 << level
            found[row] += values[tree, leaf]
