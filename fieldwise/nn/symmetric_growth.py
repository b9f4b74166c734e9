"""How symmetric trees grow: rows as bins, the best split of all leaves of a level, and what the leaves add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import TrainingError

# Newton steps of a leaf at most, and what is near enough to none.
STEPS, NEAR = 10, 1e-3
# Added to `l2`: a leaf without rows adds nothing.
LEAST_L2 = 1e-9
# The number of a leaf.
LEAF = np.uint16
Asked = list[tuple[int, int]]


@dataclass(frozen=True)
class Growth:
    """How trees grow: the options of `symmetric` of the same names."""

    depth: int
    lr: float
    subsample: float
    l2: float
    random_strength: float
    bins: int
    onehot: int


class Splits(NamedTuple):
    """Trees of depth D: split (t, d) of `columns` (T, D) sends a row right whose value is above its bound or, where it
    is `single`, equal to it. The number whose bit d says so is the row's leaf, which adds its value of (T, 2^D)."""

    columns: NDArray[np.int32]
    bounds: NDArray[np.float32]
    single: NDArray[np.bool_]
    values: NDArray[np.float32]


class Binned:
    """Columns as bins, by the training rows: 0 is a missing number, and each bin above ends at an edge; or, of a
    category with few values, its ids."""

    def __init__(self, features: NDArray[np.float32], described: Sequence[tuple[str, int]], growth: Growth) -> None:
        self.single = np.array([kind == "c" and size <= growth.onehot for kind, size in described])
        self.edges = [
            np.arange(size, dtype=np.float32) if single else edges_of(features[:, column], growth.bins)
            for column, ((_, size), single) in enumerate(zip(described, self.single, strict=True))
        ]
        counts = [len(own) if single else len(own) + 2 for own, single in zip(self.edges, self.single, strict=True)]
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.rows = self(features)

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Rows (n, H) -> bins (H, n)."""
        found = np.empty(features.shape[::-1], dtype=np.uint8)
        for column, (edges, single) in enumerate(zip(self.edges, self.single, strict=True)):
            own = features[:, column]
            found[column] = own if single else np.where(np.isnan(own), 0, 1 + np.searchsorted(edges, own))
        return found

    def splits(self, asked: Asked, values: NDArray[np.float32]) -> Splits:
        """A tree whose levels ask for bins of columns, as one for features."""
        columns = np.array([column for column, _ in asked], dtype=np.int32)
        bounds = np.array([self._bound(column, at) for column, at in asked], dtype=np.float32)
        return Splits(columns, bounds, self.single[columns], values)

    def _bound(self, column: int, at: int) -> float:
        """What a value must be above to lie in a bin after this one; above a missing number is any."""
        if self.single[column]:
            return float(at)
        return float(self.edges[column][at - 1]) if at else -np.inf


def edges_of(column: NDArray[np.float32], bins: int) -> NDArray[np.float32]:
    """Where bins of a column's numbers end: at each value but the last where they are few, else at quantiles.

    >>> edges_of(np.array([3, 1, 1, 2, np.nan], dtype=np.float32), 4).tolist()
    [1.0, 2.0]
    """
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if len(values) < bins:
        return np.asarray(values[:-1])
    ends = np.cumsum(counts)
    places = np.searchsorted(ends, np.arange(1, bins - 1) * ends[-1] / (bins - 1))
    return np.asarray(values[np.unique(np.minimum(places, len(values) - 2))])


class Scored:
    """Rows as bins (H, n), and their logits after the trees so far."""

    def __init__(self, rows: NDArray[np.uint8], base: float) -> None:
        self.rows, self.logits = rows, np.full(rows.shape[1], base)

    def after(self, asked: Asked, single: NDArray[np.bool_], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Their logits (n,) after one more tree."""
        leaves = np.zeros(self.rows.shape[1], dtype=LEAF)
        for level, (column, at) in enumerate(asked):
            own = self.rows[column]
            leaves |= (own == at if single[column] else own > at).astype(LEAF) << LEAF(level)
        self.logits += values[leaves]
        return self.logits.astype(np.float32)


class Growing:
    """Training rows as bins, and the trees that they grow one after the other."""

    def __init__(
        self,
        binned: Binned,
        labels: NDArray[Any],
        weights: NDArray[np.float64],
        growth: Growth,
        seed: int,
        threads: int,
    ) -> None:
        from fieldwise.nn import symmetric_loops

        self.loops, self.binned, self.growth, self.random = symmetric_loops, binned, growth, np.random.default_rng(seed)
        self.labels, self.weights = labels.astype(np.float64), weights
        rate = float(np.average(self.labels, weights=weights))
        self.base = float(np.log(rate / (1 - rate)))
        self.logits, self.number = np.full(len(labels), self.base), 0
        # Half of the leaves: the last split's sums are not needed.
        self.sums = np.zeros((2 ** (growth.depth - 1), int(binned.starts[-1]), 2))
        columns = len(binned.single)
        self.parts = [(columns * part // threads, columns * (part + 1) // threads) for part in range(threads)]
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def tree(self) -> tuple[Asked, NDArray[np.float32]]:
        """One more tree: the column and bin that each level asks for, and what the leaves add."""
        slopes = self.weights * (self.labels - 1 / (1 + np.exp(-self.logits)))
        rows = np.flatnonzero(self.random.random(len(slopes)) < self.growth.subsample).astype(np.int32)
        pulls = np.stack([slopes[rows], self.weights[rows]], axis=1)
        noise = self._noise(slopes)
        leaves, asked = np.zeros(len(slopes), dtype=LEAF), Asked()
        self._gather(rows, leaves[rows], 0, pulls)
        for level in range(self.growth.depth):
            column, at = self._split(2**level, noise)
            asked.append((column, at))
            self.loops.go_right(self.binned.rows[column], at, bool(self.binned.single[column]), 2**level, leaves)
            if level + 1 < self.growth.depth:
                self._part(rows, leaves, 2**level, pulls)
        return asked, self._values(leaves)

    def _noise(self, slopes: NDArray[np.float64]) -> float:
        """The deviation of the noise of a split's score, which fades as the trees add up."""
        left = len(slopes) * np.exp(-self.number * self.growth.lr)
        return float(self.growth.random_strength * np.sqrt(np.mean(slopes**2)) * left / (1 + left))

    def _gather(self, rows: NDArray[np.int32], leaves: NDArray[np.uint16], first: int, pulls: NDArray[Any]) -> None:
        """Sums up rows (m,) by bins in leaves `first` and after, each in its own beyond that."""
        self.sums[first : max(1, 2 * first)] = 0
        starts, bins = self.binned.starts, self.binned.rows
        self._each(
            lambda low, high: self.loops.add_rows(bins, rows, leaves, first, starts, pulls, low, high, self.sums)
        )

    def _part(self, rows: NDArray[np.int32], leaves: NDArray[np.uint16], size: int, pulls: NDArray[Any]) -> None:
        """Sums of the halves of each leaf: the rows of the smaller side are added up, the rest is the other's."""
        known, starts = leaves[rows], self.binned.starts
        goes = (known & size) != 0
        right = 2 * np.count_nonzero(goes) <= len(rows)
        side = np.flatnonzero(goes == right)
        self._gather(rows[side], known[side] & LEAF(size - 1), size, pulls[side])
        self._each(lambda low, high: self.loops.part_leaves(self.sums, size, right, starts[low], starts[high]))

    def _split(self, size: int, noise: float) -> tuple[int, int]:
        """The column and bin of the best split of `size` leaves."""
        starts, single, l2 = self.binned.starts, self.binned.single, self.growth.l2 + LEAST_L2
        drawn = noise * self.random.standard_normal(self.sums.shape[1])
        found = self._each(
            lambda low, high: self.loops.best_split(self.sums, size, starts, single, l2, drawn, low, high)
        )
        _, column, at = max(found, key=lambda one: one[0])
        if column < 0:
            raise TrainingError("no column has two values to split by; give trees more columns, or rows")
        return column, at

    def _values(self, leaves: NDArray[np.uint16]) -> NDArray[np.float32]:
        """What the leaves add, which all training rows get, those too that the splits have not seen."""
        values = np.zeros(2**self.growth.depth)
        own = leaves, self.labels, self.weights, self.logits
        self.loops.leaf_values(*own, self.growth.l2 + LEAST_L2, STEPS, NEAR, values)
        found = (self.growth.lr * values).astype(np.float32)
        self.logits += found[leaves]
        self.number += 1
        return found

    def _each(self, action: Callable[[int, int], Any]) -> list[Any]:
        """Calls an action with ranges of columns, each in a thread."""
        if self.pool is None:
            return [action(low, high) for low, high in self.parts]
        return [job.result() for job in [self.pool.submit(action, low, high) for low, high in self.parts]]
