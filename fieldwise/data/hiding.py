"""Values that are hidden in a share of the training rows, so that a model has learnt what to say of new ones.

A value that training never saw is `other`, and every history key that it is part of has no past. Where no training row
looks like that, a model is free to answer anything: trees that read rates had predicted twice the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.draws import HIDDEN, stream
from fieldwise.data.schema import FIRST, MISSING, OTHER, PAD, HistorySettings, Layout

Ids = NDArray[np.int32]
STEP, ALL = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**32)
# Rows whose numbers are drawn at a time.
PIECE = 1 << 18


@dataclass(frozen=True)
class Blank:
    """What a row has where a value is new: id columns, and the id in each of them."""

    columns: NDArray[np.int64]
    ids: Ids

    def there(self, ids: Ids) -> NDArray[np.bool_]:
        """Which rows (n,) of ids (n, C) have it already."""
        return np.asarray((ids[:, self.columns] == self.ids).all(axis=1))

    def put(self, ids: Ids, rows: Any = slice(None)) -> None:
        """Hides the value in some rows, in place."""
        for column, number in zip(self.columns.tolist(), self.ids.tolist(), strict=True):
            ids[rows, column] = number


def blank(name: str, names: Sequence[str], layout: Layout, history: HistorySettings) -> Blank:
    """What is seen of a new value of a column, or of a new combination such as `user*item`.

    The field of that name is `other`, and the keys that are made of the name, or of it and others, have no past.
    `names` are those of all fields of the layout.
    """
    values = {name: OTHER} if name in names else {}
    parts = {name} if name in names else set(name.split("*"))
    for key in (key for key in history.keys if parts <= set(key.split("*"))):
        values |= {f"{key}:{part}": MISSING if part == "rate" else FIRST for part in history.parts}
    places = {one: place for place, one in enumerate(names)}
    columns: list[int] = []
    ids: list[int] = []
    for field, value in values.items():
        own = layout.columns_of([places[field]])
        columns += own
        # In a set the value is the only member; a count of 0 between anchors has its id in all columns.
        ids += [value, *[value if value == FIRST else PAD] * (len(own) - 1)]
    return Blank(np.array(columns, dtype=np.int64), np.array(ids, dtype=np.int32))


class Hiding:
    """Hides values in training rows, each column in its share of them.

    Which ones is drawn by the number of a row, so that batches, epochs, chunks and workers do not matter. Both labels
    have the same share hidden, to a row: else a few hundred hidden rows would tell their own rate by chance.
    """

    def __init__(
        self, blanks: Sequence[Blank], shares: Sequence[float], seed: int, labels: NDArray[np.uint8]
    ) -> None:
        self.blanks = blanks
        self.salt, *odd = stream(seed, HIDDEN).integers(1, 2**63, 1 + len(blanks), dtype=np.uint64)
        # An odd number turns a row's random number into that of a column.
        self.odd = np.array(odd, dtype=np.uint64) | np.uint64(1)
        self.limits = self._limits(shares, labels)

    def __call__(self, ids: Ids, rows: NDArray[np.int64], labels: NDArray[np.uint8]) -> Ids:
        """Ids (n, C) of the rows of these numbers (n,) and labels (n,), with values hidden in place."""
        hits, columns = np.nonzero(self._drawn(rows) < self.limits[labels])
        for place in np.unique(columns).tolist():
            self.blanks[place].put(ids, hits[columns == place])
        return ids

    def _drawn(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """A number below 2^32 for each row and column, from a well-mixed one for each row: splitmix64."""
        total = (rows.astype(np.uint64) ^ self.salt) * STEP
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((total ^ (total >> np.uint64(31)))[:, None] * self.odd) >> np.uint64(32)

    def _limits(self, shares: Sequence[float], labels: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """What the numbers of hidden rows are below, (2, columns) by label: as many rows as the share says."""
        rows = np.bincount(labels, minlength=2)
        rare = int(rows.argmin())
        found = np.zeros((2, len(shares)), dtype=np.uint64)
        low = self._lowest(shares, labels, rows)
        for place, share in enumerate(shares):
            fewer = int(share * rows[rare])
            wanted = (fewer, round(fewer * rows[1 - rare] / max(1, rows[rare])))
            for label, count in zip((rare, 1 - rare), wanted, strict=True):
                numbers = np.sort(low[label][place])[: count + 1]
                found[label, place] = numbers[count] if count < len(numbers) else ALL
        return found

    def _lowest(
        self, shares: Sequence[float], labels: NDArray[np.uint8], rows: NDArray[np.int64]
    ) -> list[list[NDArray[np.uint64]]]:
        """For each label and column, the numbers among which the limit lies: all would be many."""
        # Twice the share, and a hundred rows: it is never as many by chance.
        bounds = np.minimum(1, 2 * np.array(shares) + 100 / np.maximum(1, rows)[:, None]) * int(ALL)
        pieces: list[list[list[NDArray[np.uint64]]]] = [[[] for _ in shares] for _ in rows]
        for first in range(0, len(labels), PIECE):
            own = np.asarray(labels[first : first + PIECE])
            drawn = self._drawn(np.arange(first, first + len(own)))
            for label in (0, 1):
                here = drawn[own == label]
                for place in range(len(shares)):
                    pieces[label][place].append(here[here[:, place] < bounds[label, place], place])
        return [[np.concatenate(own) for own in columns] for columns in pieces]
