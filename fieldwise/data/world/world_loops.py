"""The compiled loops of a world's rows, in a module of their own so that numba keeps them on disk.

They run in float64 and in one order, with no arithmetic that a compiler may reorder: a row has the same bits on every
machine, in every block and by every thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Rows that are worked on together. Every loop over them has this length, so that it compiles to whole vectors.
TILE = 64
# The lowest power of 2 that is told from 0, and what rounds a number when it is added and taken away again.
LOWEST, ROUNDER = -1000.0, 1.5 * 2.0**52
# Taylor's series of 2 ** x on -.5 ... .5, exact to 1e-11.
C1, C2, C3 = 0.6931471805599453, 0.24022650695910072, 0.05550410866482158
C4, C5, C6 = 0.009618129107628477, 0.0013333558146428443, 0.00015403530393381608
C7, C8, C9 = 1.525273380405984e-05, 1.3215486790144309e-06, 1.0178086009239699e-07
BITS, ONE = np.int64(52), np.int64(1023) << np.int64(52)
LINEAR, BILINEAR, RULE = 0, 1, 3  # as in effects.PARTS, where 2 is a network


@njit(cache=True, inline="always")
def series(x: Any) -> Any:
    high = C5 + x * (C6 + x * (C7 + x * (C8 + x * C9)))
    return 1.0 + x * (C1 + x * (C2 + x * (C3 + x * (C4 + x * high))))


@njit(cache=True, nogil=True)
def gather(codes: Any, firsts: Any, table: Any, start: Any, v: Any) -> None:
    """The vectors (F, 5, TILE) of a tile's codes; behind the last row that row again."""
    last = codes.shape[1] - 1
    for f in range(len(codes)):
        for t in range(TILE):
            row = firsts[f] + codes[f, min(start + t, last)]
            for i in range(5):
                v[f, i, t] = table[row, i]


@njit(cache=True, nogil=True)
def add_bilinear(a: Any, b: Any, w: Any, total: Any) -> None:
    for i in range(0, 16, 4):
        own, w0, w1, w2, w3 = a[i // 4], w[i], w[i + 1], w[i + 2], w[i + 3]
        for t in range(TILE):
            total[t] += own[t] * (w0 * b[0, t] + w1 * b[1, t] + w2 * b[2, t] + w3 * b[3, t])


@njit(cache=True, nogil=True)
def add_rule(a: Any, b: Any, c: Any, weight: Any, total: Any) -> None:
    for t in range(TILE):
        if a[0, t] > 0 and b[0, t] > 0 and c[0, t] > 0:
            total[t] += weight
        elif a[0, t] < 0 and b[0, t] < 0 and c[0, t] < 0:
            total[t] -= weight


@njit(cache=True, nogil=True, error_model="numpy")
def add_unit(a: Any, b: Any, w: Any, work: Any, total: Any) -> None:
    """A hidden unit of a network and its mirrors.

    tanh(x + c) - tanh(x - c) is 2 sinh 2c / (cosh 2x + cosh 2c), and cosh 2x is (P + 1 / P) / 2 for P = exp(-2 |x|),
    so that two powers do for four tanh. `work` (6, TILE) is room for them.
    """
    w0, w1, w2, w3, w4, w5, w6, w7, twice_cosh, weight = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]
    for t in range(TILE):
        left = w0 * a[0, t] + w1 * a[1, t] + w2 * a[2, t] + w3 * a[3, t]
        right = w4 * b[0, t] + w5 * b[1, t] + w6 * b[2, t] + w7 * b[3, t]
        x, y = -abs(left + right), -abs(left - right)
        x, y = (x if x > LOWEST else LOWEST), (y if y > LOWEST else LOWEST)
        whole_x, whole_y = x + ROUNDER, y + ROUNDER
        work[0, t], work[1, t] = whole_x, whole_y
        work[2, t], work[3, t] = series(x - (whole_x - ROUNDER)), series(y - (whole_y - ROUNDER))
    # A rounded number has its whole part in the lowest bits; in the place of an exponent that is a power of 2.
    bits = work.view(np.int64)
    for t in range(TILE):
        bits[4, t] = (bits[0, t] << BITS) + ONE
        bits[5, t] = (bits[1, t] << BITS) + ONE
    for t in range(TILE):
        p, q = work[2, t] * work[4, t], work[3, t] * work[5, t]
        below = (p * p + 1.0 + twice_cosh * p) * (q * q + 1.0 + twice_cosh * q)
        total[t] += weight * (p - q) * (1.0 - p * q) / below


@njit(cache=True, nogil=True)
def logits(
    codes: Any, firsts: Any, table: Any, kinds: Any, fields: Any, places: Any, weights: Any, bias: Any, out: Any
) -> None:
    """The logits (B,) of codes (F, B), by effects as effects.py packs them."""
    rows = codes.shape[1]
    v, work = np.empty((len(codes), 5, TILE), np.float64), np.empty((6, TILE), np.float64)
    total = np.empty(TILE, np.float64)
    for start in range(0, rows, TILE):
        gather(codes, firsts, table, start, v)
        total[:] = bias
        for e in range(len(kinds)):
            w = weights[places[e] : places[e + 1]]
            a, b, c = v[fields[e, 0]], v[fields[e, 1]], v[fields[e, 2]]
            if kinds[e] == LINEAR:
                for t in range(TILE):
                    total[t] += w[0] * a[4, t]
            elif kinds[e] == BILINEAR:
                add_bilinear(a, b, w, total)
            elif kinds[e] == RULE:
                add_rule(a, b, c, w[0], total)
            else:
                for first in range(0, len(w), 10):
                    add_unit(a, b, w[first : first + 10], work, total)
        for t in range(min(TILE, rows - start)):
            out[start + t] = total[t]
