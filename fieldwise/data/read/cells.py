"""Rows of plain text whose cells stay where they are; a whole column is made when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Cells:
    """A block of lines as a table: `column_names`, len and table[name] are those of an Arrow table of its columns.

    `block` are the bytes, with room behind them, and `ends` (rows * len(names) + 1,) where the cells end.
    """

    def __init__(
        self, block: NDArray[np.uint8], ends: NDArray[np.int32], names: Sequence[str], columns: Sequence[str]
    ) -> None:
        self.block, self.ends, self.names, self.column_names = block, ends, list(names), list(columns)
        self.places = {name: place for place, name in enumerate(names)}

    def __len__(self) -> int:
        return (len(self.ends) - 1) // len(self.names)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.column(name, np.arange(len(self)))

    def column(self, name: str, rows: NDArray[np.int64]) -> pa.ChunkedArray:
        """The texts of a column in some rows; an empty cell is missing."""
        from fieldwise.data.read import cell_loops

        width, place = len(self.names), self.places[name]
        cells = rows * width + place
        lengths = self.ends[cells + 1] - self.ends[cells] - 1
        bounds, found = np.zeros(len(rows) + 1, dtype=np.int32), np.empty(int(lengths.sum()), dtype=np.uint8)
        cell_loops.gathered(self.block, self.ends, width, place, rows, bounds, found)
        missing = pa.array(lengths > 0).buffers()[1]
        buffers = [missing, pa.py_buffer(bounds), pa.py_buffer(found)]
        return pa.chunked_array([pa.Array.from_buffers(pa.string(), len(rows), buffers)])


def cells_of(block: bytes, names: Sequence[str], columns: Sequence[str], delimiter: str) -> Cells | None:
    """The cells of whole lines; None where a line has too few or too many, or what is no text."""
    from fieldwise.data.read import cell_loops

    if not block.endswith(b"\n"):
        block += b"\n"
    if not _is_text(block):
        return None
    room: Any = np.frombuffer(block + bytes(cell_loops.ROOM), dtype=np.uint8)
    ends = np.empty(np.count_nonzero(room == cell_loops.LINE_END) * len(names) + 1, dtype=np.int32)
    ends[0] = -1
    found = cell_loops.find_ends(room, len(block), ord(delimiter), len(names), ends)
    return Cells(room, ends, names, columns) if found == len(ends) - 1 else None


def _is_text(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
