"""The norm of all sub-networks, and the ReLU behind it, without a transposed copy (CPU, numba).

With m and r = 1 / sqrt(var + eps) of a row's n = P H units x (P, B, H), u = (x - m) r: y = max(0, gain u + shift).
Back, with d = dy gain where y > 0, else 0: dx = r (d - sum d / n - u sum (d u) / n), dgain = sum dy u and
dshift = sum dy over the places where y > 0. Each function does rows low..high. The plain versions are `PairNorm` and
`relu`. Sums of GROUP pairs at a time are lanes; from there on they are float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fieldwise.loops.instructions import pointer
from fieldwise.loops.lanes import LANES, larger, load, spread, store, total, where_zero

ROWS = 8  # rows whose units stay in the cache
GROUP = 32


@njit(cache=True, nogil=True)
def empty(lanes: Any, sums: Any, zero: Any) -> None:
    """Adds the lanes (n, 16) up into sums (n,), and empties them."""
    places = pointer(lanes)
    for k in range(len(sums)):
        sums[k] += total(load(places, k * LANES, LANES), 0)
        store(places, k * LANES, LANES, zero)


@njit(cache=True, nogil=True, error_model="numpy")
def moments(x: Any, ones: Any, eps: Any, start: Any, end: Any, stats: Any, lanes: Any, sums: Any) -> None:
    """Fills stats (B, 2), m and r, of ROWS rows at most; room for it: ones (H,), lanes (2 ROWS, 16), sums (2 ROWS,)."""
    pairs, rows, units = x.shape
    to, zero = lanes.dtype.type, spread(lanes.dtype.type(0))
    xs, one, partial = pointer(x), pointer(ones), pointer(lanes)
    sums[:] = 0
    for b in range(start, end):
        # Taken from the mean of the first pair's units, near that of all, so that the squares do not cancel out.
        stats[b, 0] = 0
        for c in range(0, units, LANES):
            stats[b, 0] += total(load(xs, b * units + c, units - c), 0) / units
    for p in range(pairs):
        for b in range(start, end):
            place, near, row = (p * rows + b) * units, to(stats[b, 0]), 2 * (b - start)
            first, second = load(partial, row * LANES, LANES), load(partial, (row + 1) * LANES, LANES)
            for c in range(0, units, LANES):
                far = load(xs, place + c, units - c) - load(one, c, units - c) * near
                first = first + far
                second = second + far * far
            store(partial, row * LANES, LANES, first)
            store(partial, (row + 1) * LANES, LANES, second)
        if p % GROUP == GROUP - 1 or p == pairs - 1:
            empty(lanes, sums, zero)
    for b in range(start, end):
        far, square = sums[2 * (b - start)] / (pairs * units), sums[2 * (b - start) + 1] / (pairs * units)
        stats[b, 0] = to(stats[b, 0]) + far
        stats[b, 1] = 1 / math.sqrt(max(square - far * far, 0.0) + eps)


@njit(cache=True, nogil=True, error_model="numpy")
def forward(x: Any, gain: Any, shift: Any, eps: Any, low: Any, high: Any, stats: Any, y: Any) -> None:
    """Fills y (P, B, H), and stats (B, 2) with m and r; gain and shift (1 or P, H)."""
    pairs, rows, units = x.shape
    to, one_gain, zero = gain.dtype.type, len(gain) == 1, spread(gain.dtype.type(0))
    ones, lanes, sums = np.ones(units, gain.dtype), np.zeros((2 * ROWS, LANES), gain.dtype), np.zeros(2 * ROWS)
    xs, ys, gains, shifts = pointer(x), pointer(y), pointer(gain), pointer(shift)
    for start in range(low, high, ROWS):
        end = min(start + ROWS, high)
        moments(x, ones, eps, start, end, stats, lanes, sums)
        for p in range(pairs):
            own = 0 if one_gain else p * units
            for b in range(start, end):
                place, mean, scale = (p * rows + b) * units, to(stats[b, 0]), to(stats[b, 1])
                for c in range(0, units, LANES):
                    u = (load(xs, place + c, units - c) - mean) * scale
                    normal = u * load(gains, own + c, units - c) + load(shifts, own + c, units - c)
                    store(ys, place + c, units - c, larger(normal, zero))


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    dy: Any, x: Any, gain: Any, shift: Any, stats: Any, low: Any, high: Any, dgain: Any, dshift: Any, dx: Any
) -> None:
    """Fills dx, adds to dgain and dshift (P, H), which are by pair even where the gain is not."""
    pairs, rows, units = x.shape
    to, one_gain, zero = gain.dtype.type, len(gain) == 1, spread(gain.dtype.type(0))
    gs, xs, gains, shifts, out = pointer(dy), pointer(x), pointer(gain), pointer(shift), pointer(dx)
    lanes, sums = np.zeros((2 * ROWS, LANES), gain.dtype), np.zeros(2 * ROWS)
    by_gain, by_shift, partial = pointer(dgain), pointer(dshift), pointer(lanes)
    for start in range(low, high, ROWS):
        end = min(start + ROWS, high)
        for turn in range(2):
            if turn:
                sums /= pairs * units
            else:
                sums[:] = 0
            for p in range(pairs):
                own = 0 if one_gain else p * units
                for c in range(0, units, LANES):
                    left, there, added, plain = units - c, p * units + c, zero, zero
                    weight, moved = load(gains, own + c, left), load(shifts, own + c, left)
                    for b in range(start, end):
                        place, row = (p * rows + b) * units + c, 2 * (b - start)
                        u = (load(xs, place, left) - to(stats[b, 0])) * to(stats[b, 1])
                        g = where_zero(larger(u * weight + moved, zero), zero, load(gs, place, left))
                        d = g * weight
                        if turn:
                            rest = d - u * to(sums[row + 1]) - to(sums[row])
                            store(out, place, left, rest * to(stats[b, 1]))
                        else:
                            added, plain = added + g * u, plain + g
                            store(partial, row * LANES, LANES, load(partial, row * LANES, LANES) + d)
                            store(partial, (row + 1) * LANES, LANES, load(partial, (row + 1) * LANES, LANES) + d * u)
                    if not turn:
                        store(by_gain, there, left, load(by_gain, there, left) + added)
                        store(by_shift, there, left, load(by_shift, there, left) + plain)
                if not turn and (p % GROUP == GROUP - 1 or p == pairs - 1):
                    empty(lanes, sums, zero)
