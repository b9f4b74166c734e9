"""Rows sorted by score, separately for each class, collected in pieces; AUC and reliability are computed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Scores per partial sum; keeps temporary arrays small beside the scores.
CHUNK = 1 << 20

Piece = tuple[NDArray[Any], NDArray[Any] | None]


class Sums(NamedTuple):
    """The weight of some rows, the weight of the positive ones, and the weighted sum of the scores."""

    weight: float
    positive: float
    score: float


class Scores:
    """Scores in rising order and their weights, collected in pieces; equal scores are merged if there are many."""

    def __init__(self) -> None:
        self._values: NDArray[Any] = np.empty(0, dtype=np.float32)
        # None: every score weighs 1. Weights are whole numbers until a piece brings its own weights.
        self._weights: NDArray[Any] | None = None
        self._cumulated: NDArray[Any] | None = None
        self._new: list[Piece] = []
        self._waiting = 0

    def add(self, values: NDArray[Any], weights: NDArray[Any] | None) -> None:
        """Keeps the arrays without copying. Sorting is deferred, so each score is sorted only a few times."""
        self._new.append((values, weights))
        self._waiting += len(values)
        if self._waiting > max(len(self._values), CHUNK):
            self._settle()

    def merge(self, other: Scores) -> None:
        """Adds a copy of other scores."""
        self.add(other.values.copy(), None if other._weights is None else other._weights.copy())

    @property
    def values(self) -> NDArray[Any]:
        if self._new:
            self._settle()
        return self._values

    @property
    def total(self) -> float | int:
        """The weight of all scores."""
        return self.first(len(self.values))

    def first(self, count: int) -> float | int:
        """The weight of the first `count` scores."""
        return _plain(self._until(np.asarray(count)))

    def below(self, scores: Any) -> NDArray[Any]:
        """The total weight of the scores below each of `scores`."""
        return self._until(np.searchsorted(self.values, scores, side="left"))

    def up_to(self, scores: Any) -> NDArray[Any]:
        """The total weight of the scores below or equal to each of `scores`."""
        return self._until(np.searchsorted(self.values, scores, side="right"))

    def sum(self, function: Callable[[NDArray[Any]], NDArray[Any]], count: int | None = None) -> float | int:
        """The weighted sum of a function of the scores, of all or of the first `count`."""
        return sum(_plain((function(values) * weights).sum()) for values, weights in self._chunks(count))

    def _until(self, places: NDArray[Any]) -> NDArray[Any]:
        if self._weights is None:
            return places
        if self._cumulated is None:
            self._cumulated = np.concatenate([np.zeros(1, self._weights.dtype), np.cumsum(self._weights)])
        return np.asarray(self._cumulated[places])

    def _chunks(self, count: int | None) -> Iterator[tuple[NDArray[Any], Any]]:
        values = self.values[:count]
        for first in range(0, len(values), CHUNK):
            place = slice(first, min(first + CHUNK, len(values)))
            yield values[place], 1 if self._weights is None else self._weights[place]

    def _settle(self) -> None:
        """Sorts the new pieces in. Merges equal scores if that at least halves their number."""
        pieces = [piece for piece in ((self._values, self._weights), *self._new) if len(piece[0])]
        self._new, self._waiting, self._cumulated = [], 0, None
        if not pieces:
            return
        values = pieces[0][0] if len(pieces) == 1 else np.concatenate([values for values, _ in pieces])
        weights = _join(pieces)
        # Frees the pieces before sorting needs more memory.
        self._values, pieces = values[:0], []
        if weights is None:
            values.sort()
        else:
            order = np.argsort(values)
            # In two statements: the unsorted values are freed before the weights are copied.
            values = values[order]
            weights = weights[order]
            del order
        first = np.ones(len(values), dtype=bool)
        np.not_equal(values[1:], values[:-1], out=first[1:])
        if 2 * np.count_nonzero(first) <= len(values):
            starts = np.flatnonzero(first)
            values = values[starts]
            weights = np.diff(starts, append=len(first)) if weights is None else np.add.reduceat(weights, starts)
        self._values, self._weights = values, weights


def _join(pieces: list[Piece]) -> NDArray[Any] | None:
    """The weights of all pieces, None if no piece has any."""
    if all(weights is None for _, weights in pieces):
        return None
    return np.concatenate([np.ones(len(v), dtype=np.int64) if w is None else w for v, w in pieces])


def _plain(value: Any) -> float | int:
    """A Python number: whole ones never overflow."""
    number: float | int = value.item()
    return number


class Ranking:
    """The sorted scores of positive and of negative rows, from which all metrics follow.

    Rows may be added in pieces, and rankings of several workers merged, in any order: the AUC of unweighted rows is the
    same in every bit. A row takes the 4 or 8 bytes of its score, and less if scores repeat.

    >>> first = Ranking().add(np.array([0, 1]), np.array([0.1, 0.4]))
    >>> first.merge(Ranking().add(np.array([0, 1]), np.array([0.4, 0.8]))).auc()
    0.875
    """

    def __init__(self) -> None:
        self.positive, self.negative, self.rows = Scores(), Scores(), 0

    def add(self, labels: NDArray[Any], scores: NDArray[Any], weights: NDArray[Any] | None = None) -> Ranking:
        """Adds rows."""
        scores, positive = np.asarray(scores), np.asarray(labels) > 0
        for side, chosen in ((self.positive, positive), (self.negative, ~positive)):
            side.add(scores[chosen], None if weights is None else np.asarray(weights)[chosen].astype(np.float64))
        self.rows += len(positive)
        return self

    def merge(self, other: Ranking) -> Ranking:
        """Adds the rows of another ranking, which does not change."""
        self.positive.merge(other.positive)
        self.negative.merge(other.negative)
        self.rows += other.rows
        return self

    @property
    def total(self) -> float | int:
        """The weight of all rows."""
        return self.positive.total + self.negative.total

    def auc(self) -> float:
        """The probability that a positive row scores above a negative one, ties counting half.

        NaN with only one class, or if a score is NaN.
        """
        pairs = self.positive.total * self.negative.total
        # NaN sorts last, and is not equal to itself.
        if not pairs or any(side.values[-1] != side.values[-1] for side in (self.positive, self.negative)):
            return float("nan")
        # 64-bit integers overflow at some four thousand million rows.
        kind = np.float64 if pairs >= 1 << 62 else None
        twice = self.positive.sum(
            lambda scores: np.asarray(self.negative.below(scores) + self.negative.up_to(scores), dtype=kind)
        )
        return twice / 2 / pairs

    def sums(self, positives: int | None = None, negatives: int | None = None) -> Sums:
        """The sums over the first scores of each class, as many as given, or over all."""
        sides = ((self.positive, positives), (self.negative, negatives))
        weights = [side.total if count is None else side.first(count) for side, count in sides]
        return Sums(sum(weights), weights[0], sum(side.sum(_doubles, count) for side, count in sides))

    def lowest(self, weights: Sequence[float]) -> list[Sums]:
        """For each of `weights`, the sums over the lowest scores that weigh as much together.

        Rows with the same score at the boundary count in equal parts, so the order of rows does not matter.
        """
        sides = (self.positive, self.negative)
        reached = np.minimum(*(self._reaching(side.values, np.asarray(weights)) for side in sides))
        places = [np.searchsorted(side.values, reached, side="left").tolist() for side in sides]
        equal = [(side.up_to(reached) - side.below(reached)).tolist() for side in sides]
        found = []
        for weight, score, *own in zip(weights, reached.tolist(), *places, *equal, strict=True):
            sums, same = self.sums(*own[:2]), own[2:]
            more = weight - sums.weight
            found.append(Sums(weight, sums.positive + more * same[0] / sum(same), sums.score + more * score))
        return found

    def _reaching(self, values: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        """The first of the rising `values` up to which all scores weigh at least each of `weights`; infinity if there
        is none: a binary search for all of them at once."""
        low, high = np.zeros(len(weights), dtype=np.int64), np.full(len(weights), len(values))
        while (low < high).any():
            middle = (low + high) // 2
            # Where the search has come to its end, `middle` may lie behind the last value, and nothing is changed.
            score = values[np.minimum(middle, len(values) - 1)]
            short = (low < high) & (self.positive.up_to(score) + self.negative.up_to(score) < weights)
            low, high = np.where(short, middle + 1, low), np.where(short, high, np.minimum(middle, high))
        return np.append(values, np.array(np.inf, dtype=values.dtype))[low]


def _doubles(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.astype(np.float64)
