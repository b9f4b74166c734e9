"""Cells of a block of text -> ids, all fields of a row at once, without a column or a Python object for any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.read.cells import Cells

if TYPE_CHECKING:
    from fieldwise.data.encode.encoder import FieldCode

KINDS = ("words", "numbers")
# Characters of a word; one of them is four bytes at most.
LONGEST = 1 << 12
Encode = Callable[["FieldCode", pa.ChunkedArray], NDArray[np.int32]]


class CellCodes:
    """The codes of all fields, of which categories and plain numbers go through one compiled loop.

    `encode` is the plain way, column by column: it takes the other fields, and the cells that the loop leaves.
    """

    def __init__(self, codes: Sequence[FieldCode], encode: Encode) -> None:
        from fieldwise.data.read import cell_loops

        self.loops, self.encode = cell_loops, encode
        ends = np.cumsum([code.width for code in codes])
        self.places = [slice(end - code.width, end) for code, end in zip(codes, ends, strict=True)]
        self.codes, self.width = codes, int(ends[-1])
        self.words, self.numbers = ([n for n, code in enumerate(codes) if _kind(code) == kind] for kind in KINDS)
        bounds = [codes[number].thresholds for number in self.numbers]
        self.edges, self.thresholds = np.cumsum([0, *map(len, bounds)]), np.concatenate([*bounds, np.empty(1)])
        whole = np.arange(cell_loops.SMALL, dtype=np.float64)
        self.small = np.array([codes[number]._numbers(whole) for number in self.numbers], dtype=np.int32)
        self._fill([codes[number].vocabulary for number in self.words])

    def _fill(self, vocabularies: Sequence[dict[str, int]]) -> None:
        ids = np.array([number for words in vocabularies for number in words.values()], dtype=np.int64)
        fields = np.repeat(np.arange(len(vocabularies)), [len(words) for words in vocabularies])
        # Frequent words, whose ids are low, come first and are found at once.
        order = np.argsort(ids, kind="stable")
        ids, fields = ids[order], fields[order]
        every = [text.encode("utf-8", "surrogatepass") for words in vocabularies for text in words]
        texts = [every[place] for place in order.tolist()]
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.texts: Any = np.frombuffer(b"".join([*texts, bytes(self.loops.ROOM)]), dtype=np.uint8)
        # Half of the places at most are taken, so that most texts are found at once.
        places = 1 << max(4, (4 * len(texts)).bit_length() - 1)
        self.table, self.starts = np.zeros((places, 2), dtype=np.uint64), np.zeros(places, dtype=np.int64)
        self.loops.fill(self.table, self.starts, fields, ids, self.texts, bounds)

    def ids(self, cells: Cells) -> NDArray[np.int32]:
        """The ids (n, C) that the plain way gives for the columns of the cells."""
        ids = np.empty((len(cells), self.width), dtype=np.int32)
        self._quick(self.loops.categories, cells, self.words, (self.table, self.starts, self.texts), ids)
        self._quick(self.loops.numbers, cells, self.numbers, (self.edges, self.thresholds, self.small), ids)
        for number in set(range(len(self.codes))) - {*self.words, *self.numbers}:
            found = self.encode(self.codes[number], cells[self.codes[number].field.name])
            ids[:, self.places[number]] = found.reshape(len(cells), -1)
        return ids

    def _quick(
        self, loop: Any, cells: Cells, fields: list[int], tables: tuple[Any, ...], ids: NDArray[np.int32]
    ) -> None:
        """Fields by a compiled loop, and what it leaves of them."""
        if not fields:
            return
        names = [self.codes[number].field.name for number in fields]
        columns, places = [cells.places[name] for name in names], [self.places[n].start for n in fields]
        left = np.zeros(len(fields), dtype=np.int64)
        loop(cells.block, cells.ends, len(cells.names), np.array(columns), np.array(places), *tables, ids, left)
        for f in np.flatnonzero(left).tolist():
            rows = np.flatnonzero(ids[:, places[f]] == self.loops.LEFT)
            ids[rows, places[f]] = self.encode(self.codes[fields[f]], cells.column(names[f], rows))


def _kind(code: FieldCode) -> str:
    """Which loop knows the field: words of a vocabulary, numbers in buckets that thresholds part, or none."""
    field = code.field
    if field.kind == "categorical" and not field.hash_buckets and max(map(len, code.vocabulary), default=0) < LONGEST:
        return "words"
    return "numbers" if field.kind == "numeric" and not field.interpolate and field.buckets != "log-square" else ""
