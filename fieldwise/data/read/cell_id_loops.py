"""The compiled loops from cells in a block of text to ids, in a separate module, so that numba caches them.

Blocks and the ends of their cells are those of cell_loops.py. A table of texts has P places, P a power of 2,
of two numbers each: the first eight bytes of a text, and length << 48 | field << 32 | id, 0 where the place is empty.
What is longer than eight bytes is compared with the text itself, which begins at starts[place].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.data.read.word_loops import is_odd, same
from fieldwise.loops.instructions import pointer, prefetch, word

# What a cell is that the loops leave to others, in the place of an id.
LEFT = -2
# Texts of this length and more are left.
LONG = 1 << 15
MIX, MIX_FIELD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
ZEROS, NOT_DIGIT, HIGH = np.uint64(0x3030303030303030), np.uint64(0x7676767676767676), np.uint64(0x8080808080808080)
PAIRS, FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
# Whole numbers whose ids are kept.
SMALL = 1024
# Powers of ten that are numbers without an error, and how many digits are.
TENS, DIGITS = 10.0 ** np.arange(16), 15


@njit(cache=True, inline="always", nogil=True)
def start_of(data: Any, first: Any, length: Any) -> Any:
    """The first eight bytes of a text, with zeros behind a shorter one; of an empty one, any byte."""
    return word(data, first) & (~np.uint64(0) >> np.uint64(8 * min(7, max(0, 8 - length))))


@njit(cache=True, inline="always", nogil=True)
def hashed(data: Any, first: Any, length: Any, begin: Any, field: Any) -> Any:
    total = (begin ^ (np.uint64(field) * MIX_FIELD)) * MIX
    for step in range(8, length, 8):
        total = (total ^ (total >> np.uint64(32)) ^ start_of(data, first + step, length - step)) * MIX
    return total >> np.uint64(32)


@njit(cache=True, nogil=True)
def fill(table: Any, starts: Any, fields: Any, ids: Any, block: Any, bounds: Any) -> None:
    data, mask = pointer(block), np.uint64(len(table) - 1)
    for number in range(len(ids)):
        first, length = bounds[number], bounds[number + 1] - bounds[number]
        place = hashed(data, first, length, start_of(data, first, length), fields[number]) & mask
        while table[place, 1] != 0:
            place = (place + np.uint64(1)) & mask
        table[place, 0] = start_of(data, first, length)
        table[place, 1] = (
            (np.uint64(length) << np.uint64(48)) | (np.uint64(fields[number]) << np.uint64(32)) | np.uint64(ids[number])
        )
        starts[place] = first


@njit(cache=True, inline="always", nogil=True)
def category(
    data: Any, first: Any, length: Any, field: Any, begin: Any, place: Any, table: Any, mask: Any, starts: Any,
    texts: Any,
) -> Any:  # fmt: skip
    """The id of a text that begins so, looked for from a place of the table on; 1 if it is not there."""
    kind = (np.uint64(length) << np.uint64(16)) | np.uint64(field)
    while True:
        entry = table[2 * place + np.uint64(1)]
        if ((table[2 * place] == begin) & ((entry >> np.uint64(32)) == kind)) and (
            length <= 8 or same(data, first, first + length, texts, starts[place], starts[place] + length)
        ):
            return np.int32(entry & np.uint64(0xFFFFFFFF))
        if entry == 0:
            return np.int32(1)
        place = (place + np.uint64(1)) & mask


@njit(cache=True, inline="always", nogil=True)
def whole_number(text: Any, length: Any) -> Any:
    """The number that up to eight digits are, -1 if they are not all digits: neighbours are joined three times."""
    digits = (text ^ ZEROS) << np.uint64(8 * (8 - length))
    if ((digits + NOT_DIGIT) | digits) & HIGH:
        return np.int64(-1)
    digits = (digits * np.uint64(2561)) >> np.uint64(8)
    digits = ((digits & PAIRS) * np.uint64(6553601)) >> np.uint64(16)
    return np.int64(((digits & FOURS) * np.uint64(42949672960001)) >> np.uint64(32))


@njit(cache=True, inline="always", nogil=True)
def decimal(data: Any, first: Any, last: Any) -> Any:
    """The number of a text -?d+(.d+)? of few digits, NaN for any other.

    Of two numbers without an error, the digits and a power of ten, the quotient is the nearest number, as `float` says.
    """
    minus = data[first] == 45
    place, digits, behind, value = first + minus, 0, -1, 0
    while place < last and digits <= DIGITS:
        byte = data[place]
        if byte == 46 and behind < 0 and digits > 0:
            behind = 0
        elif 48 <= byte <= 57:
            value = value * 10 + (byte - 48)
            digits += 1
            behind += behind >= 0
        else:
            return np.nan
        place += 1
    if place < last or digits > DIGITS or digits == 0 or behind == 0:
        return np.nan
    number = value / TENS[max(behind, 0)]
    return -number if minus else number


@njit(cache=True, inline="always", nogil=True)
def bucket(value: Any, bounds: Any, low: Any, high: Any) -> Any:
    """How many of bounds[low:high], which rise, are less than the value; without a branch to mispredict."""
    base, size = low, high - low
    while size > 1:
        half = size >> 1
        base += half if bounds[base + half - 1] < value else 0
        size -= half
    return base - low + (1 if size and bounds[base] < value else 0)


@njit(cache=True, nogil=True)
def categories(
    block: Any, ends: Any, width: Any, columns: Any, places: Any, table_: Any, starts_: Any, texts: Any, ids_: Any,
    left: Any,
) -> None:  # fmt: skip
    """Ids of fields whose cells are column columns[f] of the block; they go to column places[f] of ids (n, C).

    Cells that may be spelt in another way are `LEFT`, and counted in left[f]. A row's places in the table are asked for
    before any of them is looked at: memory answers them side by side.
    """
    data, words, table, starts = pointer(block), pointer(texts), pointer(table_), pointer(starts_)
    mask = np.uint64(len(table_) - 1)
    end, ids, fields, to = pointer(ends), pointer(ids_), len(columns), ids_.shape[1]
    wanted, begins = np.empty(fields, np.uint64), np.empty(fields, np.uint64)
    for row in range(len(ids_)):
        for f in range(fields):
            k = row * width + columns[f]
            first, length = end[k] + 1, end[k + 1] - end[k] - 1
            begins[f] = start_of(data, first, length)
            wanted[f] = hashed(data, first, length, begins[f], f) & mask
            prefetch(table, 2 * wanted[f])
        for f in range(fields):
            k = row * width + columns[f]
            first, last = end[k] + 1, end[k + 1]
            found = category(data, first, last - first, f, begins[f], wanted[f], table, mask, starts, words)
            if is_odd(data, first, last) or last - first >= LONG:
                found = np.int32(LEFT)
                left[f] += 1
            ids[row * to + places[f]] = found if last > first else np.int32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def numbers(
    block: Any, ends: Any, width: Any, columns: Any, places: Any, edges: Any, thresholds: Any, small_: Any, ids_: Any,
    left: Any,
) -> None:  # fmt: skip
    """The same for numbers whose buckets end at thresholds[edges[f] : edges[f + 1]]; `LEFT` is what is no plain number.

    The ids of small whole numbers are in small (fields, SMALL).
    """
    data, bounds, end, ids, small = pointer(block), pointer(thresholds), pointer(ends), pointer(ids_), pointer(small_)
    fields, to = len(columns), ids_.shape[1]
    for row in range(len(ids_)):
        for f in range(fields):
            k = row * width + columns[f]
            first, length = end[k] + 1, end[k + 1] - end[k] - 1
            value = whole_number(start_of(data, first, length), length) if 0 < length <= 8 else -1
            if length == 0:
                found = np.int32(0)
            elif 0 <= value < SMALL:
                found = small[f * SMALL + value]
            else:
                number = float(value) if value >= 0 else decimal(data, first, first + length)
                found = np.int32(2 + bucket(number, bounds, edges[f], edges[f + 1]) if number == number else LEFT)
                left[f] += found == LEFT
            ids[row * to + places[f]] = found
