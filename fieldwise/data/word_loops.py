"""The compiled loops of lookup.py, in a module of their own so that numba keeps them on disk.

Texts are Arrow's: the bytes of all of them, and where each begins and ends. A table holds for each of its P places, P a
power of 2, a hash (0: empty) and the number of a text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

UNKNOWN, ODD = -1, -2


@njit(cache=True, inline="always", nogil=True)
def hashed(data: Any, first: Any, last: Any) -> Any:
    total = np.uint64(0x9E3779B97F4A7C15)
    for place in range(first, last):
        total = (total ^ np.uint64(data[place])) * np.uint64(0x100000001B3)
    total = (total ^ (total >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return (total ^ (total >> np.uint64(32))) | np.uint64(1)


@njit(cache=True, inline="always", nogil=True)
def same(data: Any, first: Any, last: Any, other: Any, other_first: Any, other_last: Any) -> Any:
    if last - first != other_last - other_first:
        return False
    step = 0
    while step < last - first and data[first + step] == other[other_first + step]:
        step += 1
    return step == last - first


@njit(cache=True, inline="always", nogil=True)
def is_odd(data: Any, first: Any, last: Any) -> Any:
    """Whether a text may be another spelling of a value: it ends in .0, or has the length and start of True, False."""
    length = last - first
    if length > 2 and data[last - 1] == 48 and data[last - 2] == 46:
        return True
    return (length == 4 and data[first] == 84) or (length == 5 and data[first] == 70)


@njit(cache=True, nogil=True)
def fill(hashes: Any, numbers: Any, data: Any, bounds: Any) -> None:
    mask = np.uint64(len(hashes) - 1)
    for number in range(len(bounds) - 1):
        key = hashed(data, bounds[number], bounds[number + 1])
        place = (key >> np.uint64(1)) & mask
        while hashes[place] != 0:
            place = (place + np.uint64(1)) & mask
        hashes[place] = key
        numbers[place] = number


@njit(cache=True, nogil=True)
def find(hashes: Any, numbers: Any, data: Any, bounds: Any, asked: Any, asked_bounds: Any, found: Any) -> None:
    mask = np.uint64(len(hashes) - 1)
    for row in range(len(asked_bounds) - 1):
        first, last = asked_bounds[row], asked_bounds[row + 1]
        found[row] = UNKNOWN
        if is_odd(asked, first, last):
            found[row] = ODD
            continue
        key = hashed(asked, first, last)
        place = (key >> np.uint64(1)) & mask
        while hashes[place] != 0:
            number = numbers[place]
            if hashes[place] == key and same(asked, first, last, data, bounds[number], bounds[number + 1]):
                found[row] = number
                break
            place = (place + np.uint64(1)) & mask
