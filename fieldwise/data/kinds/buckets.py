"""A number's buckets, and its place between anchors: what a numeric field fits on the training rows' histogram.

A histogram is the distinct values in rising order, how many rows have each, and how many of them are positive. A bucket
ends at a threshold and includes it. An anchor is a value that stands for a bucket; a number between two anchors gets
both of their vectors, by its place between them in steps of 1/M. It does so as a set: of its M ids the nearer anchor
has more, and the vector of a set is the mean of its members'.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.kinds.kind import FIRST, MISSING, PAD

if TYPE_CHECKING:
    from fieldwise.data.kinds.number import NumberField

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Histogram:
    """The finite values of a numeric column: distinct and rising (V,), their rows (V,) and positives (V,)."""

    values: Floats
    counts: Whole
    positives: Whole

    def only(self, chosen: NDArray[np.bool_]) -> Histogram:
        """Some of the values."""
        return Histogram(self.values[chosen], self.counts[chosen], self.positives[chosen])


def fit_thresholds(field: NumberField, seen: Histogram) -> Floats:
    """Bounds between buckets. There is none at the largest value: no training row lies above."""
    values, counts = seen.values, seen.counts
    if field.buckets == "explicit":
        return np.array(field.thresholds, dtype=np.float64)
    if len(values) < 2:
        return np.empty(0)
    if field.buckets == "tree":
        return tree_thresholds(seen, field.max_buckets, field.bucket_count)
    if field.buckets == "quantile":
        return quantile_thresholds(seen, field.max_buckets)
    bounds, running = [], 0
    for value, n in zip(values[:-1].tolist(), counts[:-1].tolist(), strict=True):
        running += n
        if running > field.bucket_count:
            bounds.append(value)
            running = 0
    return np.array(bounds, dtype=np.float64)


def quantile_thresholds(seen: Histogram, buckets: int) -> Floats:
    """Bounds of a bucket for each value, or of buckets of equal frequency beside those of heavy values."""
    if len(seen.values) <= buckets:
        return seen.values[:-1].copy()
    return np.asarray(seen.values[_bucket_ends(seen.counts, buckets)[:-1]])


def heavy_values(counts: Whole, buckets: int) -> NDArray[np.bool_]:
    """Which values (V,) have as many rows as a bucket of the other values would: they get a bucket of their own.

    >>> heavy_values(np.array([2, 9000, 3, 40, 1, 4, 2, 3, 1]), 4).nonzero()[0].tolist()
    [1, 3]
    """
    heavy, found = np.zeros(len(counts), dtype=bool), 0
    while found < buckets:
        heavy |= counts * (buckets - found) >= max(1, counts[~heavy].sum())
        if heavy.sum() == found:
            break
        found = int(heavy.sum())
    return heavy


def _bucket_ends(counts: Whole, buckets: int) -> Whole:
    """The places of the last values of at most `buckets` buckets: heavy values first, the rest in equal shares.

    Were shares taken of all rows, a value that most rows have would use up most of the buckets. A few rows before a
    heavy value, less than half a share, join it.
    """
    heavy = heavy_values(counts, buckets)
    light = np.where(heavy, 0, counts)
    before, at = np.concatenate([[0], np.cumsum(light)]), np.append(np.flatnonzero(heavy), len(counts))
    ends: list[int] = []
    first, left = 0, buckets - int(heavy.sum())
    while first < len(counts) and len(ends) < buckets - 1:
        next_heavy = int(at[np.searchsorted(at, first)])
        share = (before[-1] - before[first]) / max(1, left)
        end = max(first, int(np.searchsorted(before[1:], before[first] + share)))
        if end >= next_heavy:
            alone = next_heavy > first and before[next_heavy] - before[first] >= share / 2
            end = next_heavy - 1 if alone else min(next_heavy, len(counts) - 1)
        left -= not heavy[end]
        ends.append(end)
        first = end + 1
    return np.array([end for end in ends if end < len(counts) - 1] + [len(counts) - 1])


def tree_thresholds(seen: Histogram, leaves: int, least: int) -> Floats:
    """The splits of a tree over one number that lower the log loss most, each time the best one of all leaves.

    A leaf keeps at least `least` rows. A split must lower the total log loss of the n rows by more than ln n: it adds a
    bound and a rate, and that is what two more numbers cost by Schwarz's criterion.
    """
    counts = np.concatenate([[0], np.cumsum(seen.counts)]).astype(np.float64)
    positives = np.concatenate([[0], np.cumsum(seen.positives)]).astype(np.float64)
    price = math.log(counts[-1])

    def best_split(first: int, last: int) -> tuple[float, int, int, int]:
        """(minus the gain, place, first, last) of the best cut of values first..last-1, the place in the left part."""
        places = np.arange(first + 1, last)
        left = counts[places] - counts[first], positives[places] - positives[first]
        right = counts[last] - counts[places], positives[last] - positives[places]
        whole = _loss(counts[[last]] - counts[first], positives[[last]] - positives[first])
        gain = np.where(np.minimum(left[0], right[0]) >= least, whole - _loss(*left) - _loss(*right), 0.0)
        if not gain.max(initial=0.0) > price:
            return 0.0, 0, first, last
        return -float(gain.max()), int(places[gain.argmax()]), first, last

    found: list[int] = []
    open_leaves = [best_split(0, len(seen.values))]
    while len(found) < leaves - 1:
        gain, place, first, last = heapq.heappop(open_leaves)
        if gain == 0:
            break
        found.append(place)
        heapq.heappush(open_leaves, best_split(first, place))
        heapq.heappush(open_leaves, best_split(place, last))
    return np.asarray(seen.values[np.sort(found).astype(np.int64) - 1])


def _loss(count: Floats, positives: Floats) -> Floats:
    """The total log loss of groups that are given their own rates."""
    total = np.zeros(len(count))
    for part in (positives, count - positives):
        total -= part * np.log(np.where(part > 0, part / np.maximum(count, 1), 1.0))
    return total


def fit_anchors(thresholds: Floats, seen: Histogram, alone: Floats | None = None) -> Floats:
    """For each bucket that training rows fall into, the median of their values; they rise with the buckets.

    Buckets of values that stand alone are left out: the few rows beside such a value are too few for a vector.
    """
    if not len(seen.values):
        return np.zeros(1)
    ends = np.searchsorted(seen.values, thresholds, side="right")
    starts, ends = np.append(0, ends), np.append(ends, len(seen.values))
    used = starts < ends
    if alone is not None and len(alone):
        others = used & ~np.isin(np.arange(len(used)), np.searchsorted(thresholds, alone))
        used = others if others.any() else used
    starts, ends = starts[used], ends[used]
    passed = np.concatenate([[0], np.cumsum(seen.counts)])
    middle = (passed[starts] + passed[ends]) / 2
    return np.asarray(seen.values[np.searchsorted(passed[1:], middle)])


def fine_ids(values: Floats, anchors: Floats, steps: int) -> NDArray[np.int32]:
    """A number as one fine id: M times the id of the anchor below, plus the steps of 1/M from there to the next.

    Beyond the ends it is that of the first or the last anchor; NaN is missing.
    """
    missing = np.isnan(values)
    places = np.interp(np.where(missing, anchors[0], values), anchors, np.arange(len(anchors)))
    fine = FIRST * steps + np.floor(places * steps + 0.5)
    return np.where(missing, MISSING * steps, fine).astype(np.int32)


def spread(fine: NDArray[np.int32], steps: int) -> NDArray[np.int32]:
    """Fine ids (...,) -> ids (..., M) of neighbouring anchors, which have the fine id over M as their mean.

    What is no number stands alone.

    >>> spread(np.array([8, 13, 14, 0]), 4).tolist()
    [[2, 2, 2, 2], [3, 3, 3, 4], [3, 3, 4, 4], [0, -1, -1, -1]]
    """
    ids = (fine[..., None] + np.arange(steps, dtype=np.int32)) // steps
    ids[fine < FIRST * steps, 1:] = PAD
    return np.asarray(ids)
