"""What the kinds fit on: what to count of a column of training rows, and what was counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fieldwise.data.kinds.buckets import Histogram


# Texts, and in how many rows each of them is.
Piece = tuple[pa.Array, NDArray[np.int64]]


@dataclass(frozen=True)
class Query:
    """DuckDB's expression for a cell. A cell of `several` values is a list, whose members count once; in a text the
    `separator` stands between them. With `repeats` the longest cell is counted with its repetitions.

    Texts of fewer rows than `least` are not asked for; 0: none at all. Where nothing is `counted`, neither texts nor
    numbers are asked for.
    """

    cell: str
    several: bool = False
    least: int = 1
    separator: str = ""
    repeats: bool = False
    counted: bool = True


class Counted(Protocol):
    """A column of the training rows. It is counted when something of it is asked for."""

    @property
    def texts(self) -> list[tuple[str, int]]:
        """How often each text occurs; of those that are too rare only some."""
        ...

    @property
    def rest(self) -> Iterator[Piece]:
        """The texts that `texts` leaves out, because they are too rare: each once, in pieces of any size and order."""
        ...

    @property
    def histogram(self) -> Histogram:
        """The finite numbers."""
        ...

    @property
    def odd_texts(self) -> list[str]:
        """The first of the texts that DuckDB takes for no number."""
        ...

    @property
    def longest(self) -> int:
        """The most different values of a cell, or, with `repeats`, the most values."""
        ...


@dataclass(frozen=True)
class Recounted:
    """A column whose texts also count what was counted of them before."""

    column: Counted
    texts: list[tuple[str, int]]

    @property
    def rest(self) -> Iterator[Piece]:
        return iter(())

    @property
    def histogram(self) -> Histogram:
        return self.column.histogram

    @property
    def odd_texts(self) -> list[str]:
        return self.column.odd_texts

    @property
    def longest(self) -> int:
        return self.column.longest


def summed(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Counts of texts that different raw values share, such as 3 and 3.0."""
    total: dict[str, int] = {}
    for text, n in pairs:
        total[text] = total.get(text, 0) + n
    return list(total.items())
