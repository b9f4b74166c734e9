"""Values that are hidden in a share of the training rows, so that a model has learnt what to say of new ones.

A value that training never saw is `other`, and every history key that it is part of has no past. Where no training row
looks like that, a model is free to answer anything: trees that read rates had predicted twice the truth.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.draws import HIDDEN, stream
from fieldwise.data.schema import FIRST, MISSING, OTHER, PAD, HistorySettings, Layout

Ids = NDArray[np.int32]
STEP, ALL, HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**32), np.uint64(32)
# Rows whose numbers are drawn at a time: those of some tens of columns stay in the cache.
PIECE = 1 << 12
# More rows than these are drawn by all cores.
MANY = 1 << 18


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
        self.shares, self.seed, self.labels = np.array(shares), seed, labels
        self.widths = np.array([len(one.columns) for one in blanks], dtype=np.int64)
        self.firsts = np.cumsum(self.widths) - self.widths
        self.columns = np.concatenate([one.columns for one in blanks])
        self.ids = np.concatenate([one.ids for one in blanks])
        self.rows = np.bincount(labels, minlength=2)
        self.drawn: tuple[int, _Draws] | None = None

    def cells(self, rows: NDArray[np.int64], epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Ids]:
        """Of the rows of these numbers (n,): the places among them that have a hidden id, its column, and the id."""
        draws, labels = self._draws(epoch), np.take(np.asarray(self.labels), rows)
        names, hits, _ = draws.below(draws.limits, rows, labels)
        widths = self.widths[names]
        ends = np.cumsum(widths)
        # Where each cell's column and id lie among those of all blanks.
        cells = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.firsts[names] - ends + widths, widths)
        return np.repeat(hits, widths), self.columns[cells], self.ids[cells]

    def _draws(self, epoch: int) -> _Draws:
        """The draws of an epoch; those of the last one are kept, as their limits take a pass over all labels."""
        if self.drawn is None or self.drawn[0] != epoch:
            self.drawn = (epoch, _Draws(stream(self.seed, HIDDEN, epoch), len(self.widths)))
            self.drawn[1].limits = self._limits(self.drawn[1])
        return self.drawn[1]

    def _limits(self, draws: _Draws) -> NDArray[np.uint64]:
        """What the numbers of hidden rows are below, (2, columns) by label, for as many rows as the shares say."""
        rare = int(self.rows.argmin())
        fewer = (self.shares * self.rows[rare]).astype(np.int64)
        wanted = np.empty((2, len(fewer)), dtype=np.int64)
        wanted[rare], wanted[1 - rare] = fewer, np.round(fewer * self.rows[1 - rare] / max(1, self.rows[rare]))
        # The numbers among which a limit lies: all of them would be many, and chance never leaves fewer than these.
        rows = np.maximum(1, self.rows)[:, None]
        bounds = np.minimum(1, self.shares + 8 * np.sqrt(self.shares / rows) + 100 / rows) * int(ALL)
        names, places, numbers = draws.below(bounds.astype(np.uint64), np.arange(len(self.labels)), self.labels)
        kinds = 2 * names + np.take(np.asarray(self.labels), places)
        order = np.argsort(kinds, kind="stable")
        firsts, found = np.searchsorted(kinds[order], np.arange(2 * len(fewer) + 1)), np.empty_like(wanted, np.uint64)
        for kind, (first, last) in enumerate(pairwise(firsts)):
            column, label = divmod(kind, 2)
            own, count = numbers[order[first:last]], wanted[label, column]
            found[label, column] = np.partition(own, count)[count] if count < len(own) else ALL
        return found


class _Draws:
    """A number below 2^32 for each row and column, from a well-mixed one for each row: splitmix64."""

    limits: NDArray[np.uint64]

    def __init__(self, random: np.random.Generator, columns: int) -> None:
        self.salt, *odd = random.integers(1, 2**63, 1 + columns, dtype=np.uint64)
        # An odd number turns a row's random number into that of a column.
        self.odd = np.array(odd, dtype=np.uint64) | np.uint64(1)

    def below(
        self, bounds: NDArray[np.uint64], rows: NDArray[np.int64], labels: NDArray[np.uint8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """The columns, the places among the rows (n,) and the numbers that are below their label's bounds (2, columns).

        They are sorted by column, then by place.
        """
        most = bounds.max(axis=0)
        # The upper halves are compared where they are; a bound of 2^32 becomes 2^64 - 1.
        highest = np.where(most > 0, (most << HALF) - np.uint64(1), 0)[:, None]

        def piece(first: int) -> list[NDArray[Any]]:
            numbers, own = self(rows[first : first + PIECE]), np.asarray(labels[first : first + PIECE])
            names, places = np.nonzero(numbers <= highest)
            found = numbers[names, places] >> HALF
            kept = found < bounds[own[places], names]
            return [names[kept], places[kept] + first, found[kept]]

        firsts = range(0, max(1, len(rows)), PIECE)
        if len(rows) <= MANY:
            pieces = [piece(first) for first in firsts]
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                pieces = list(pool.map(piece, firsts))
        names, places, found = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        order = np.argsort(names.astype(np.int16), kind="stable")
        return names[order], places[order], found[order]

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The numbers (columns, n) of rows (n,), in the upper halves."""
        total = (rows.astype(np.uint64) ^ self.salt) * STEP
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total ^= total >> np.uint64(31)
        return np.asarray(self.odd[:, None] * total)
