"""The micro networks of all pairs around their first matrix product, pair by pair in the cache (CPU, numba).

    inputs      v_i, v_j and v_i * v_j side by side, for the matrix product that gives the units x (P, B, H)
    forward     the fused norm over a row's n = P H units, ReLU and the small last layer: units are not written again

With m and r = 1 / sqrt(var + eps) of a row's units and u = (x - m) r: y = max(0, gain u + shift), out = W y + b. Back,
with dy = W^T dout where y > 0, else 0, and d = dy gain: dx = r (d - sum d / n - u sum (d u) / n), dW = sum dout y^T,
dgain = sum dy u, dshift = sum dy. Each function does rows low..high. The plain version is `MicroNetwork.plain`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fieldwise.instructions import pointer
from fieldwise.kernels.lanes import LANES, larger, load, spread, store, total, where_zero
from fieldwise.kernels.pair_norm import GROUP, ROWS, empty, moments

BLOCK = 64  # rows whose vectors, of all fields, stay in the cache


@njit(cache=True, nogil=True)
def inputs(v: Any, first: Any, second: Any, low: Any, high: Any, out: Any) -> None:
    """Fills out (P, B, 2 D or 3 D), of v (F, B, D)."""
    rows, dim, wide = v.shape[1], v.shape[2], out.shape[2]
    count, vs, outs = min(dim, LANES), pointer(v), pointer(out)
    for start in range(low, high, BLOCK):
        for p in range(len(first)):
            one, two = first[p] * rows, second[p] * rows
            for b in range(start, min(start + BLOCK, high)):
                to = (p * rows + b) * wide
                for c in range(0, dim, LANES):
                    here = min(c, dim - count)
                    x, y = load(vs, (one + b) * dim + here, count), load(vs, (two + b) * dim + here, count)
                    store(outs, to + here, count, x)
                    store(outs, to + dim + here, count, y)
                    if wide > 2 * dim:
                        store(outs, to + 2 * dim + here, count, x * y)


@njit(cache=True, nogil=True)
def inputs_back(grad: Any, v: Any, first: Any, second: Any, low: Any, high: Any, dv: Any) -> None:
    """Adds to dv (F, B, D): dv_i = g_1 + g_3 v_j, dv_j = g_2 + g_3 v_i of grad (P, B, 2 D or 3 D)."""
    rows, dim, wide = v.shape[1], v.shape[2], grad.shape[2]
    vs, gs, dvs = pointer(v), pointer(grad), pointer(dv)
    for start in range(low, high, BLOCK):
        for p in range(len(first)):
            one, two = first[p] * rows, second[p] * rows
            for b in range(start, min(start + BLOCK, high)):
                place = (p * rows + b) * wide
                for c in range(0, dim, LANES):
                    left, i, j = dim - c, (one + b) * dim + c, (two + b) * dim + c
                    by_i, by_j = load(gs, place + c, left), load(gs, place + dim + c, left)
                    if wide > 2 * dim:
                        both = load(gs, place + 2 * dim + c, left)
                        by_i = by_i + both * load(vs, j, left)
                        by_j = by_j + both * load(vs, i, left)
                    store(dvs, i, left, load(dvs, i, left) + by_i)
                    store(dvs, j, left, load(dvs, j, left) + by_j)


@njit(cache=True, nogil=True, error_model="numpy")
def forward(
    x: Any, gain: Any, shift: Any, weight: Any, bias: Any, eps: Any, low: Any, high: Any, stats: Any, out: Any
) -> None:
    """Fills out (B, P, U) and stats (B, 2), m and r; gain and shift (1 or P, H), weight (P, U, H), bias (P, U)."""
    pairs, rows, units = x.shape
    outs, to, one_gain = weight.shape[1], gain.dtype.type, len(gain) == 1
    xs, gains, shifts, ws, zero = pointer(x), pointer(gain), pointer(shift), pointer(weight), spread(gain.dtype.type(0))
    ones, lanes, sums = np.ones(units, gain.dtype), np.zeros((2 * ROWS, LANES), gain.dtype), np.zeros(2 * ROWS)
    room = (units + LANES - 1) // LANES * LANES
    y = np.zeros((ROWS, room), gain.dtype)
    ys = pointer(y)
    for start in range(low, high, ROWS):
        end = min(start + ROWS, high)
        moments(x, ones, eps, start, end, stats, lanes, sums)
        for p in range(pairs):
            mine = 0 if one_gain else p * units
            for c in range(0, units, LANES):
                left, weight_, shift_ = units - c, load(gains, mine + c, units - c), load(shifts, mine + c, units - c)
                for b in range(start, end):
                    u = (load(xs, (p * rows + b) * units + c, left) - to(stats[b, 0])) * to(stats[b, 1])
                    store(ys, (b - start) * room + c, LANES, larger(u * weight_ + shift_, zero))
            for k in range(outs):
                for b in range(start, end):
                    found = zero
                    for c in range(0, units, LANES):
                        found = found + load(ys, (b - start) * room + c, LANES) * load(
                            ws, (p * outs + k) * units + c, units - c
                        )
                    out[b, p, k] = bias[p, k] + total(found, 0)


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    dout: Any, x: Any, gain: Any, shift: Any, weight: Any, stats: Any, low: Any, high: Any, dgain: Any, dshift: Any,
    dweight: Any, dx: Any,
) -> None:  # fmt: skip
    """Fills dx, adds to dgain and dshift (P, H), by pair even where the gain is not, and to dweight (P, U, H)."""
    pairs, rows, units = x.shape
    outs, to, one_gain = weight.shape[1], gain.dtype.type, len(gain) == 1
    xs, gains, shifts, ws, zero = pointer(x), pointer(gain), pointer(shift), pointer(weight), spread(gain.dtype.type(0))
    gs, found, by_gain, by_shift = pointer(dout), pointer(dx), pointer(dgain), pointer(dshift)
    lanes, sums = np.zeros((2 * ROWS, LANES), gain.dtype), np.zeros(2 * ROWS)
    y_ = np.zeros((ROWS, LANES), gain.dtype)
    partial, by_weight, ys = pointer(lanes), pointer(dweight), pointer(y_)
    for start in range(low, high, ROWS):
        end = min(start + ROWS, high)
        sums[:] = 0
        for p in range(pairs):
            mine = 0 if one_gain else p * units
            for c in range(0, units, LANES):
                left, there, first, second = units - c, p * units + c, zero, zero
                weight_, shift_ = load(gains, mine + c, left), load(shifts, mine + c, left)
                for b in range(start, end):
                    place, row, from_, dy = (p * rows + b) * units + c, 2 * (b - start), (b * pairs + p) * outs, zero
                    for k in range(outs):
                        dy = dy + load(ws, (p * outs + k) * units + c, left) * gs[from_ + k]
                    u = (load(xs, place, left) - to(stats[b, 0])) * to(stats[b, 1])
                    y = larger(u * weight_ + shift_, zero)
                    g = where_zero(y, zero, dy)
                    d = g * weight_
                    store(ys, (b - start) * LANES, LANES, y)
                    store(found, place, left, d)
                    first, second = first + g * u, second + g
                    store(partial, row * LANES, LANES, load(partial, row * LANES, LANES) + d)
                    store(partial, (row + 1) * LANES, LANES, load(partial, (row + 1) * LANES, LANES) + d * u)
                store(by_gain, there, left, load(by_gain, there, left) + first)
                store(by_shift, there, left, load(by_shift, there, left) + second)
                for k in range(outs):
                    at, summed = (p * outs + k) * units + c, zero
                    for b in range(start, end):
                        summed = summed + load(ys, (b - start) * LANES, LANES) * gs[(b * pairs + p) * outs + k]
                    store(by_weight, at, left, load(by_weight, at, left) + summed)
            if p % GROUP == GROUP - 1 or p == pairs - 1:
                empty(lanes, sums, zero)
        sums /= pairs * units
        for p in range(pairs):
            for b in range(start, end):
                place, mean, scale = (p * rows + b) * units, to(stats[b, 0]), to(stats[b, 1])
                one, two = to(sums[2 * (b - start)]), to(sums[2 * (b - start) + 1])
                for c in range(0, units, LANES):
                    u = (load(xs, place + c, units - c) - mean) * scale
                    store(found, place + c, units - c, (load(found, place + c, units - c) - u * two - one) * scale)
