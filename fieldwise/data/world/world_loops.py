"""The compiled loops of a world's rows, in a separate module, so that numba caches them.

No arithmetic here may be reordered by a compiler: a row has the same bits on every machine, in every block and by every
thread. Vectors are worked on in float32, as `Effect` does; the sum of all effects is float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Rows that are worked on together. Every loop over them has this length, so that it compiles to whole vectors.
TILE = 128
LINEAR, BILINEAR, RULE = 0, 1, 3  # as in effects.PARTS, where 2 is a network
UNIT = 10  # numbers of one hidden unit
ONE = np.float32(1)
# The lowest power of 2 that counts as more than 0, and what rounds a number when it is added and taken away again.
LOWEST, ROUNDER = np.float32(-120), np.float32(1.5 * 2**23)
# Taylor's series of 2 ** x on -.5 ... .5.
C1, C2, C3 = np.float32(0.6931471805599453), np.float32(0.24022650695910072), np.float32(0.05550410866482158)
C4, C5, C6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.00015403530393381608)
# The exponent of a float32 stands in front of this many bits, and that of 1 is 127.
BITS, BIAS = np.int32(23), np.int32(127 << 23)


@njit(cache=True, nogil=True)
def drift(slot: Any, drifts: Any, day: Any, shift: Any, slots: Any) -> Any:
    """Slots, moved by their day's shift where a row drifts. Unlike numpy's index, the loop lets other threads run."""
    found = np.empty_like(slot)
    for i in range(len(slot)):
        found[i] = (slot[i] + shift[day[i]]) % slots if drifts[i] else slot[i]
    return found


@njit(cache=True, nogil=True)
def alive(slot: Any, day: Any, change: Any, successor: Any) -> Any:
    """The codes that fill slots: from the day of a slot's change on, its successor."""
    found = np.empty_like(slot)
    for i in range(len(slot)):
        found[i] = successor[slot[i]] if day[i] >= change[slot[i]] else slot[i]
    return found


@njit(cache=True, nogil=True, inline="always")
def series(x: Any) -> Any:
    return ONE + x * (C1 + x * (C2 + x * (C3 + x * (C4 + x * (C5 + x * C6)))))


@njit(cache=True, nogil=True)
def gather(codes: Any, firsts: Any, table: Any, start: Any, v: Any) -> None:
    """The vectors (F, 5, TILE) of a tile's codes; behind the last row that row again."""
    last = codes.shape[1] - 1
    for f in range(len(codes)):
        for t in range(TILE):
            row = firsts[f] + codes[f, min(start + t, last)]
            for i in range(5):
                v[f, i * TILE + t] = table[row, i]


@njit(cache=True, nogil=True)
def add_bilinear(a: Any, b: Any, w: Any, found: Any) -> None:
    for i in range(4):
        j = 4 * i
        w0, w1, w2, w3 = w[j], w[j + 1], w[j + 2], w[j + 3]
        for t in range(TILE):
            part = w0 * b[t] + w1 * b[TILE + t] + w2 * b[2 * TILE + t] + w3 * b[3 * TILE + t]
            found[t] += a[i * TILE + t] * part


@njit(cache=True, nogil=True)
def add_rule(a: Any, b: Any, c: Any, weight: Any, found: Any) -> None:
    for t in range(TILE):
        if a[t] > 0 and b[t] > 0 and c[t] > 0:
            found[t] += weight
        elif a[t] < 0 and b[t] < 0 and c[t] < 0:
            found[t] -= weight


@njit(cache=True, nogil=True, error_model="numpy")
def add_unit(a: Any, b: Any, w: Any, work: Any, found: Any) -> None:
    """A hidden unit of a network and its mirrors.

    tanh(x + c) - tanh(x - c) is 2 sinh 2c / (cosh 2x + cosh 2c), and cosh 2x is (P + 1 / P) / 2 for P = exp(-2 |x|),
    so that two powers do for four tanh. `work` (4, TILE) is room for them.
    """
    w0, w1, w2, w3, w4, w5, w6, w7, twice_cosh, weight = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]
    for t in range(TILE):
        left = w0 * a[t] + w1 * a[TILE + t] + w2 * a[2 * TILE + t] + w3 * a[3 * TILE + t]
        right = w4 * b[t] + w5 * b[TILE + t] + w6 * b[2 * TILE + t] + w7 * b[3 * TILE + t]
        x, y = -abs(left + right), -abs(left - right)
        x, y = (x if x > LOWEST else LOWEST), (y if y > LOWEST else LOWEST)
        whole_x, whole_y = x + ROUNDER, y + ROUNDER
        work[t], work[TILE + t] = whole_x, whole_y
        work[2 * TILE + t] = series(x - (whole_x - ROUNDER))
        work[3 * TILE + t] = series(y - (whole_y - ROUNDER))
    # A rounded number has its whole part in the lowest bits; in the place of an exponent that is a power of 2.
    bits = work.view(np.int32)
    for t in range(2 * TILE):
        bits[t] = (bits[t] << BITS) + BIAS
    for t in range(TILE):
        p, q = work[2 * TILE + t] * work[t], work[3 * TILE + t] * work[TILE + t]
        below = (p * p + ONE + twice_cosh * p) * (q * q + ONE + twice_cosh * q)
        found[t] += weight * (p - q) * (ONE - p * q) / below


@njit(cache=True, nogil=True)
def logits(
    codes: Any, firsts: Any, table: Any, kinds: Any, fields: Any, places: Any, weights: Any, bias: Any, out: Any
) -> None:
    """The logits (B,) of codes (F, B), by effects as effects.py packs them."""
    rows = codes.shape[1]
    v, work = np.empty((len(codes), 5 * TILE), np.float32), np.empty(4 * TILE, np.float32)
    found, total = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    for start in range(0, rows, TILE):
        gather(codes, firsts, table, start, v)
        total[:] = bias
        for e in range(len(kinds)):
            w = weights[places[e] : places[e + 1]]
            a, b, c = v[fields[e, 0]], v[fields[e, 1]], v[fields[e, 2]]
            found[:] = 0
            if kinds[e] == LINEAR:
                for t in range(TILE):
                    found[t] = w[0] * a[4 * TILE + t]
            elif kinds[e] == BILINEAR:
                add_bilinear(a, b, w, found)
            elif kinds[e] == RULE:
                add_rule(a, b, c, w[0], found)
            else:
                for first in range(0, len(w), UNIT):
                    add_unit(a, b, w[first : first + UNIT], work, found)
            for t in range(TILE):
                total[t] += found[t]
        for t in range(min(TILE, rows - start)):
            out[start + t] = total[t]


@njit(cache=True, nogil=True)
def count(codes: Any, kept: Any, clicks: Any, firsts: Any, counts: Any) -> None:
    """Adds rows and positives to counts (V, 2) of all fields' codes, of the rows (B,) that are kept."""
    for f in range(len(codes)):
        for t in range(len(kept)):
            if kept[t]:
                place = firsts[f] + codes[f, t]
                counts[place, 0] += 1
                counts[place, 1] += clicks[t]


@njit(cache=True, nogil=True)
def encode(codes: Any, rows: Any, firsts: Any, widths: Any, table: Any, ids: Any) -> None:
    """The ids (n, C) of some of the rows; field f has widths[f] ids of each code, from table[firsts[f]] on."""
    for n in range(len(rows)):
        place = 0
        for f in range(len(codes)):
            first = firsts[f] + widths[f] * codes[f, rows[n]]
            for i in range(widths[f]):
                ids[n, place] = table[first + i]
                place += 1
