"""The compiled loops of lookup.py, in a separate module, so that numba caches them.

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
    if length < 3:
        return False
    point = (data[last - 1] == 48) & (data[last - 2] == 46)
    return point | ((length == 4) & (data[first] == 84)) | ((length == 5) & (data[first] == 70))


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
    """The number of each text asked for -> found (n,): UNKNOWN where the table lacks it, ODD where `is_odd` says so.

    The table: hashes (P,) and numbers (P,) of V texts, their bytes `data` and bounds (V + 1,). The texts asked for:
    their bytes `asked` and asked_bounds (n + 1,).
    """
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


IV = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)  # fmt: skip
# Which word of the message each half step of a round takes; rounds 10 and 11 are 0 and 1 again.
SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    dtype=np.int64,
)
MIXED = np.array(
    [
        [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
        [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
    ],
    dtype=np.int64,
)  # fmt: skip


@njit(cache=True, inline="always", nogil=True)
def turned(value: Any, bits: Any) -> Any:
    return (value >> np.uint64(bits)) | (value << np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def digests(data: Any, bounds: Any, found: Any) -> None:
    """The first 8 bytes of BLAKE2b (RFC 7693) with a digest of 8 bytes, of texts of at most 128 bytes."""
    message, v = np.zeros(16, dtype=np.uint64), np.zeros(16, dtype=np.uint64)
    for row in range(len(bounds) - 1):
        first, length = bounds[row], bounds[row + 1] - bounds[row]
        message[:] = 0
        for place in range(min(length, 128)):
            message[place >> 3] |= np.uint64(data[first + place]) << np.uint64(8 * (place & 7))
        v[:8], v[8:] = IV, IV
        start = IV[0] ^ np.uint64(0x01010008)
        v[0] = start
        v[12] ^= np.uint64(length)
        v[14] = ~v[14]
        for turn in range(12):
            for step in range(8):
                a, b, c, d = MIXED[step, 0], MIXED[step, 1], MIXED[step, 2], MIXED[step, 3]
                v[a] = v[a] + v[b] + message[SIGMA[turn % 10, 2 * step]]
                v[d] = turned(v[d] ^ v[a], 32)
                v[c] = v[c] + v[d]
                v[b] = turned(v[b] ^ v[c], 24)
                v[a] = v[a] + v[b] + message[SIGMA[turn % 10, 2 * step + 1]]
                v[d] = turned(v[d] ^ v[a], 16)
                v[c] = v[c] + v[d]
                v[b] = turned(v[b] ^ v[c], 63)
        found[row] = start ^ v[0] ^ v[8]


@njit(cache=True, nogil=True)
def odd_ones(data: Any, bounds: Any, found: Any) -> None:
    """Marks texts that may be spelt in another way, and those too long for `digests`."""
    for row in range(len(bounds) - 1):
        first, last = bounds[row], bounds[row + 1]
        found[row] = last - first > 128 or is_odd(data, first, last)
