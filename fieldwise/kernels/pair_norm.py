"""The fused norm of sub-networks and the ReLU behind it, without a transposed copy (CPU, numba).

With m and r = 1 / sqrt(var + eps) of a row's n = P H units x (P, B, H), u = (x - m) r: y = max(0, gain u + shift).
Back, with d = dy gain where y > 0, else 0: dx = r (d - sum d / n - u sum (d u) / n), dgain = sum dy u and
dshift = sum dy over the places where y > 0. Each function does rows low..high. The plain version is
`PairNorm` and `relu`.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

from fieldwise.kernels.lanes import LANES, larger, load, pointer, spread, store, total, where_zero


@njit(cache=True, nogil=True, error_model="numpy")
def forward(x: Any, gain: Any, shift: Any, eps: Any, low: Any, high: Any, stats: Any, y: Any) -> None:
    """Fills y, and stats (2, B) with m and r."""
    pairs, rows, units = x.shape
    to, one_gain = x.dtype.type, len(gain) == 1
    xs, ys, gains, shifts, zero = pointer(x), pointer(y), pointer(gain), pointer(shift), spread(x.dtype.type(0))
    # Taken from near the mean, so that a sum of squares does not cancel out.
    stats[1, low:high] = 0
    for turn in range(2):
        for p in range(pairs):
            for b in range(low, high):
                place, found = (p * rows + b) * units, 0.0
                for c in range(0, units, LANES):
                    part = load(xs, place + c, units - c)
                    if turn:
                        far = part - to(stats[0, b])
                        found += total(far * far, 0) - max(0, c + LANES - units) * to(stats[0, b]) * to(stats[0, b])
                    else:
                        found += total(part, 0)
                stats[1, b] += found
        for b in range(low, high):
            mean = stats[1, b] / (pairs * units)
            if turn:
                stats[1, b] = 1 / math.sqrt(max(mean, 0.0) + eps)
            else:
                stats[0, b], stats[1, b] = mean, 0
    for p in range(pairs):
        own = 0 if one_gain else p * units
        for b in range(low, high):
            place = (p * rows + b) * units
            for c in range(0, units, LANES):
                u = (load(xs, place + c, units - c) - to(stats[0, b])) * to(stats[1, b])
                normal = u * load(gains, own + c, units - c) + load(shifts, own + c, units - c)
                store(ys, place + c, units - c, larger(normal, zero))


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    dy: Any, x: Any, gain: Any, shift: Any, stats: Any, low: Any, high: Any, sums: Any, dgain: Any, dshift: Any, dx: Any
) -> None:
    """Fills dx and sums (2, B), adds to dgain and dshift (P, H), which are by pair even where the gain is not."""
    pairs, rows, units = x.shape
    to, one_gain, zero = x.dtype.type, len(gain) == 1, spread(x.dtype.type(0))
    gs, xs, gains, shifts, out = pointer(dy), pointer(x), pointer(gain), pointer(shift), pointer(dx)
    by_gain, by_shift = pointer(dgain), pointer(dshift)
    sums[:, low:high] = 0
    for turn in range(2):
        for p in range(pairs):
            own = 0 if one_gain else p * units
            for b in range(low, high):
                place, mean, scale = (p * rows + b) * units, to(stats[0, b]), to(stats[1, b])
                for c in range(0, units, LANES):
                    left, here, there = units - c, own + c, p * units + c
                    u, weight = (load(xs, place + c, left) - mean) * scale, load(gains, here, left)
                    open_ = larger(u * weight + load(shifts, here, left), zero)
                    g = where_zero(open_, zero, load(gs, place + c, left))
                    if turn:
                        rest = g * weight - u * to(sums[1, b]) - to(sums[0, b])
                        store(out, place + c, left, rest * scale)
                    else:
                        store(by_gain, there, left, load(by_gain, there, left) + g * u)
                        store(by_shift, there, left, load(by_shift, there, left) + g)
                        sums[0, b] += total(g * weight, 0)
                        sums[1, b] += total(g * weight * u, 0)
        if not turn:
            sums[:, low:high] /= pairs * units
