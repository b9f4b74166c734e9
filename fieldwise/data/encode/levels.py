"""How many rows and positives there are in blocks of time, for those who ask how far the rate moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.dataset import PARTS, Level
from fieldwise.data.encode.split import Split, in_order_of
from fieldwise.data.read.texts import texts_of

# About how many blocks all rows make; and rows of a file that are counted together where its order is the time.
BLOCKS, CELL = 40, 250


class Levels:
    """Counts rows and positives by what rows are split by: the values of a column, or their places in the file."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.cells: dict[str, list[int]] = {}
        self.by_place = False
        self.divided = False  # rows of one value went to several parts, so it was not their order that decided

    def add(self, chunk: pa.Table, labels: NDArray[np.uint8], passed: int, parts: NDArray[np.int64]) -> None:
        """Counts a chunk, which comes behind `passed` rows; rows that are split in no order are not counted."""
        if self.split.is_order_of(chunk):
            self.add_in_order(labels, passed)
        elif self.split.by:
            texts, places = texts_of(chunk[self.split.by])
            self._count([text or "" for text in texts], places, labels)
            least, most = np.full(len(texts), len(PARTS)), np.full(len(texts), -1)
            np.minimum.at(least, places, parts)
            np.maximum.at(most, places, parts)
            self.divided |= bool((least < most).any())

    def add_in_order(self, labels: NDArray[np.uint8], passed: int) -> None:
        """Counts the labels of rows whose order is the time."""
        places = np.arange(passed, passed + len(labels)) // CELL
        if len(places):
            self.by_place = True
            names = [f"{place:012d}" for place in range(int(places[0]), int(places[-1]) + 1)]
            self._count(names, places - places[0], labels)

    def _count(self, names: list[str], places: NDArray[np.int64], labels: NDArray[np.uint8]) -> None:
        rows = np.bincount(places, minlength=len(names)).tolist()
        positives = np.bincount(places, weights=labels, minlength=len(names)).tolist()
        for name, count, own in zip(names, rows, positives, strict=True):
            cell = self.cells.setdefault(name, [0, 0])
            cell[0] += count
            cell[1] += int(own)

    @property
    def state(self) -> dict[str, Any]:
        """What was counted, for `join`, as JSON holds it."""
        return {"cells": self.cells, "by_place": self.by_place, "divided": self.divided}

    def join(self, state: dict[str, Any]) -> None:
        """Counts the rows that come next, of which this is the state."""
        self.by_place |= state["by_place"]
        self.divided |= state["divided"]
        for name, (rows, positives) in state["cells"].items():
            cell = self.cells.setdefault(name, [0, 0])
            cell[0] += rows
            cell[1] += positives

    @property
    def blocks(self) -> list[Level]:
        """Blocks of about the same number of rows, in order, none of which is in two parts; none without an order."""
        if not self.cells or self.divided or set(self.cells) <= set(PARTS):
            return []
        names = sorted(self.cells) if self.by_place else in_order_of(self.cells, self.split.time)
        cells = np.array([self.cells[name] for name in names])
        share = np.cumsum([0, *cells[:, 0]])[:-1] / cells[:, 0].sum() + 1e-9
        parts = np.searchsorted(np.cumsum(self.split.shares)[:2], share, side="right")
        block = parts * 2 * BLOCKS + (share * BLOCKS).astype(int)
        return [
            (PARTS[parts[own][0]], *map(int, cells[own].sum(axis=0)))  # type: ignore[misc]
            for own in (block == number for number in np.unique(block))
        ]
