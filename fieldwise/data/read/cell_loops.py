"""The compiled loops of cells.py, in a separate module, so that numba caches them.

A block of text is bytes with at least `ROOM` more behind them. Cell k lies between ends[k] + 1 and ends[k + 1], where
the delimiter or line end behind it is; ends[0] is -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import BYTES, lowest, matches, pointer

# Bytes that may be looked at behind the last one.
ROOM = BYTES
LINE_END = 10


@njit(cache=True, nogil=True)
def find_ends(block: Any, size: Any, delimiter: Any, width: Any, ends: Any) -> Any:
    """Where the cells of a block of `size` bytes end; how many there are, or -1 if a line has not `width` of them."""
    data, count, column = pointer(block), 0, 0
    for start in range(0, size, ROOM):
        bits = matches(data, start, np.uint8(delimiter), np.uint8(LINE_END))
        if size - start < ROOM:
            bits &= (np.uint64(1) << np.uint64(size - start)) - np.uint64(1)
        while bits:
            place = start + lowest(bits)
            bits &= bits - np.uint64(1)
            column += 1
            if (data[place] == LINE_END) != (column == width) or count + 1 >= len(ends):
                return -1
            column = 0 if column == width else column
            count += 1
            ends[count] = place
    return count


@njit(cache=True, nogil=True)
def gathered(block: Any, ends: Any, width: Any, column: Any, rows: Any, bounds: Any, bytes_: Any) -> None:
    """A column's texts of some rows, one behind the other: their bounds (n + 1,), and their bytes."""
    at = 0
    for number in range(len(rows)):
        k = rows[number] * width + column
        for place in range(ends[k] + 1, ends[k + 1]):
            bytes_[at] = block[place]
            at += 1
        bounds[number + 1] = at
