"""Layer norm and the ReLU after it, row by row while a row is in the first-level cache (CPU, numba).

With m and r = 1 / sqrt(var + eps) of a row's n units x, u = (x - m) r: y = max(0, gain u + shift). Back, with g = dy
where y > 0, else 0, and d = g gain: dx = r (d - sum d / n - u sum (d u) / n), and over the rows dgain = sum g u and
dshift = sum g. The plain version is torch's layer norm and `relu`. The numbers of a row after the last whole sixteen
are a separate step.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from fieldwise.loops.instructions import pointer
from fieldwise.loops.lanes import LANES, larger, load, spread, store, total, where_zero


@njit(cache=True, nogil=True, inline="always")
def far(x: Any, at: Any, count: Any, mean: Any, one: Any, c: Any) -> Any:
    """x - mean in the first `count` lanes, 0 in the others."""
    return load(x, at + c, count) - load(one, c, count) * mean


@njit(cache=True, nogil=True, inline="always")
def normed(x: Any, at: Any, c: Any, count: Any, stats: Any, gains: Any, shifts: Any) -> Any:
    """u, the gain, and gain u + shift."""
    u, gain = (load(x, at + c, count) - stats[0]) * stats[1], load(gains, c, count)
    return u, gain, u * gain + load(shifts, c, count)


@njit(cache=True, nogil=True, error_model="numpy")
def moments(x: Any, at: Any, units: Any, one: Any, to: Any, eps: Any) -> Any:
    """m and r of the row at `at`. Squares are of the distance to the mean: no cancellation."""
    whole, rest = units - units % LANES, units % LANES
    sums = load(x, at + whole, rest)
    for c in range(0, whole, LANES):
        sums = sums + load(x, at + c, LANES)
    mean = total(sums, 0) / to(units)
    tail = far(x, at, rest, mean, one, whole)
    squares = tail * tail
    for c in range(0, whole, LANES):
        away = load(x, at + c, LANES) - mean
        squares = squares + away * away
    return mean, to(1) / math.sqrt(total(squares, 0) / to(units) + to(eps))


@njit(cache=True, nogil=True, error_model="numpy")
def forward(x: Any, gain: Any, shift: Any, ones: Any, eps: Any, low: Any, high: Any, stats: Any, y: Any) -> None:
    """Fills rows low..high of y (B, H), and of stats (B, 2) with m and r; ones (H,)."""
    units, to, zero = x.shape[1], gain.dtype.type, spread(gain.dtype.type(0))
    whole, rest = units - units % LANES, units % LANES
    xs, ys, gains, shifts, one = pointer(x), pointer(y), pointer(gain), pointer(shift), pointer(ones)
    for b in range(low, high):
        at = b * units
        found = moments(xs, at, units, one, to, eps)
        stats[b, 0], stats[b, 1] = found
        for c in range(0, whole, LANES):
            store(ys, at + c, LANES, larger(normed(xs, at, c, LANES, found, gains, shifts)[2], zero))
        store(ys, at + whole, rest, larger(normed(xs, at, whole, rest, found, gains, shifts)[2], zero))


@njit(cache=True, nogil=True, inline="always")
def through(dy: Any, x: Any, at: Any, c: Any, count: Any, stats: Any, gains: Any, shifts: Any, zero: Any) -> Any:
    """u, g and d."""
    u, gain, normal = normed(x, at, c, count, stats, gains, shifts)
    g = where_zero(larger(normal, zero), zero, load(dy, at + c, count))
    return u, g, g * gain


@njit(cache=True, nogil=True, inline="always")
def add(sums: Any, c: Any, count: Any, more: Any) -> None:
    store(sums, c, count, load(sums, c, count) + more)


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    dy: Any, x: Any, gain: Any, shift: Any, stats: Any, low: Any, high: Any, dx: Any, dgain: Any, dshift: Any
) -> None:
    """Fills rows low..high of dx (B, H), adds to dgain and dshift (H,)."""
    units, to, zero = x.shape[1], gain.dtype.type, spread(gain.dtype.type(0))
    whole, rest = units - units % LANES, units % LANES
    gs, xs, gains, shifts, out = pointer(dy), pointer(x), pointer(gain), pointer(shift), pointer(dx)
    by_gain, by_shift = pointer(dgain), pointer(dshift)
    for b in range(low, high):
        at, row = b * units, (stats[b, 0], stats[b, 1])
        u, g, first = through(gs, xs, at, whole, rest, row, gains, shifts, zero)
        second = first * u
        add(by_gain, whole, rest, g * u)
        add(by_shift, whole, rest, g)
        for c in range(0, whole, LANES):
            u, g, d = through(gs, xs, at, c, LANES, row, gains, shifts, zero)
            first, second = first + d, second + d * u
            add(by_gain, c, LANES, g * u)
            add(by_shift, c, LANES, g)
        mean, along = total(first, 0) / to(units), total(second, 0) / to(units)
        for c in range(0, whole, LANES):
            u, g, d = through(gs, xs, at, c, LANES, row, gains, shifts, zero)
            store(out, at + c, LANES, (d - u * along - mean) * row[1])
        u, g, d = through(gs, xs, at, whole, rest, row, gains, shifts, zero)
        store(out, at + whole, rest, (d - u * along - mean) * row[1])
