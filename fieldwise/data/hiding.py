"""Values that are hidden in a share of the training rows, so that a model has learnt what to say of new ones.

A value that training never saw is `other`, and every history key that it is part of has no past. Where no training row
looks like that, a model is free to answer anything: trees that read rates had predicted twice the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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

    def put(self, ids: Ids) -> Ids:
        """A copy of ids (n, C) with the value hidden in all rows."""
        found = np.array(ids)
        found[:, self.columns] = self.ids
        return found


def blank(
    name: str, names: Sequence[str], layout: Layout, history: HistorySettings, pasts: Mapping[str, str] | None = None
) -> Blank:
    """What is seen of a new value of a column, or of a new combination such as `user*item`.

    The field of that name is `other`, and the keys that are made of the name, or of it and others, have no past; nor
    have the fields of earlier rows, whose keys are in `pasts`. `names` are those of all fields of the layout. A rank,
    by which trees read a number, stays: a new value has one too.
    """
    layout = layout.without_ranks
    values = {name: OTHER} if name in names else {}
    parts = {name} if name in names else set(name.split("*"))
    for key in (key for key in history.keys if parts <= set(key.split("*"))):
        values |= {f"{key}:{part}": MISSING if part == "rate" else FIRST for part in history.parts}
    values |= {field: MISSING for field, key in (pasts or {}).items() if parts <= set(key.split("*"))}
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
    """Which values of training rows are hidden: of each column in its share of them, in each epoch in others.

    It is drawn by the number of a row, so that batches, chunks and workers do not matter. Both labels have the same
    share hidden, to a row: else a few hundred hidden rows would tell the rate that they have by chance.
    """

    def __init__(self, blanks: Sequence[Blank], shares: Sequence[float], seed: int, labels: NDArray[np.uint8]) -> None:
        self.blanks, self.shares, self.seed, self.labels = blanks, np.array(shares), seed, labels
        self.rows = np.bincount(labels, minlength=2)
        self.drawn: tuple[int, _Draws] | None = None

    def cells(self, rows: NDArray[np.int64], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Ids]:
        """Of the rows of these numbers (n,): the places among them that have a hidden id, its column, and the id."""
        draws, labels = self._draws(epoch), np.take(np.asarray(self.labels), rows)
        hits, names = np.nonzero(draws(rows) < draws.limits[labels])
        found = [(hits[names == place], self.blanks[place]) for place in np.unique(names).tolist()]
        widths = [np.full(len(own), len(gap.columns)) for own, gap in found]
        if not found:
            return hits, names, np.empty(0, dtype=np.int32)
        columns, ids = ([np.tile(getattr(gap, of), len(own)) for own, gap in found] for of in ("columns", "ids"))
        places = [np.repeat(own, width) for (own, _), width in zip(found, widths, strict=True)]
        return np.concatenate(places), np.concatenate(columns), np.concatenate(ids)

    def _draws(self, epoch: int) -> _Draws:
        """The draws of an epoch; those of the last one are kept, as their limits take a pass over all labels."""
        if self.drawn is None or self.drawn[0] != epoch:
            self.drawn = (epoch, _Draws(stream(self.seed, HIDDEN, epoch), len(self.blanks)))
            self.drawn[1].limits = self._limits(self.drawn[1])
        return self.drawn[1]

    def _limits(self, draws: _Draws) -> NDArray[np.uint64]:
        """What the numbers of hidden rows are below, (2, columns) by label, for as many rows as the shares say."""
        rare = int(self.rows.argmin())
        found, low = np.zeros((2, len(self.shares)), dtype=np.uint64), self._lowest(draws)
        for place, fewer in enumerate((self.shares * self.rows[rare]).astype(np.int64).tolist()):
            wanted = (fewer, round(fewer * self.rows[1 - rare] / max(1, self.rows[rare])))
            for label, count in zip((rare, 1 - rare), wanted, strict=True):
                numbers = np.sort(low[label][place])
                found[label, place] = numbers[count] if count < len(numbers) else ALL
        return found

    def _lowest(self, draws: _Draws) -> list[list[NDArray[np.uint64]]]:
        """For each label and column the numbers among which the limit lies: all of them would be many."""
        # Twice the share and a hundred rows: chance never leaves fewer than the share.
        bounds = np.minimum(1, 2 * self.shares + 100 / np.maximum(1, self.rows)[:, None]) * int(ALL)
        pieces: list[list[list[NDArray[np.uint64]]]] = [[[] for _ in self.shares] for _ in self.rows]
        for first in range(0, len(self.labels), PIECE):
            labels = np.asarray(self.labels[first : first + PIECE])
            drawn = draws(np.arange(first, first + len(labels)))
            for label in (0, 1):
                own = drawn[labels == label]
                for place, bound in enumerate(bounds[label]):
                    pieces[label][place].append(own[own[:, place] < bound, place])
        return [[np.concatenate(own) for own in columns] for columns in pieces]


class _Draws:
    """A number below 2^32 for each row and column, from a well-mixed one for each row: splitmix64."""

    limits: NDArray[np.uint64]

    def __init__(self, random: np.random.Generator, columns: int) -> None:
        self.salt, *odd = random.integers(1, 2**63, 1 + columns, dtype=np.uint64)
        # An odd number turns a row's random number into that of a column.
        self.odd = np.array(odd, dtype=np.uint64) | np.uint64(1)

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        total = (rows.astype(np.uint64) ^ self.salt) * STEP
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total ^= total >> np.uint64(31)
        return np.asarray((total[:, None] * self.odd) >> np.uint64(32))
