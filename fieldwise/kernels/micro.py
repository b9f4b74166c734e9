"""The micro networks of all pairs, forward and back, without an array of their inputs (CPU, numba).

Of a pair's input z = [v_i, v_j] or [v_i, v_j, v_i * v_j] come units x = W^T z + b; with m and r = 1 / sqrt(var + eps) of
a row's n = P H units and u = (x - m) r: y = max(0, gain u + shift), out = L^T y + c. Back, with dy = L dout where y > 0,
else 0, and d = dy gain: dx = r (d - sum d / n - u sum (d u) / n), dz = W dx, dW = sum z dx^T, db = sum dx,
dL = sum y dout^T, dgain = sum dy u, dshift = sum dy. The plain version is `MicroNetwork.plain`.

BLOCK rows of the batch go together, sixteen in each register, so that norm and ReLU never look across lanes and every
product is one of `tiles`. Units (blocks, P, H, BLOCK) are all that is kept for the way back. Rows that the last block
has too few of are zeros. Functions do the blocks low..high. Sums of GROUP pairs are lanes; from there on, float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fieldwise.instructions import pointer
from fieldwise.kernels.lanes import LANES, larger, load, spread, store, total, where_zero
from fieldwise.kernels.tiles import added_product, product

BLOCK = 32
GROUP = 32


@njit(cache=True, nogil=True)
def turn_in(rows: Any, block: Any, out: Any) -> None:
    """A block's rows of (B, n) -> out (n, BLOCK)."""
    start = block * BLOCK
    for b in range(BLOCK):
        if start + b < len(rows):
            for n in range(rows.shape[1]):
                out[n, b] = rows[start + b, n]
        else:
            out[:, b] = 0


@njit(cache=True, nogil=True)
def turn_out(numbers: Any, block: Any, rows: Any) -> None:
    """(n, BLOCK) -> a block's rows of (B, n)."""
    start = block * BLOCK
    for b in range(min(BLOCK, len(rows) - start)):
        for n in range(rows.shape[1]):
            rows[start + b, n] = numbers[n, b]


@njit(cache=True, nogil=True)
def fill_inputs(vs: Any, dim: Any, i: Any, j: Any, wide: Any, zs: Any) -> None:
    """z (2 D or 3 D, BLOCK) of fields i and j, of v (F D, BLOCK)."""
    for n in range(0, dim * BLOCK, LANES):
        one, two = load(vs, i * dim * BLOCK + n, LANES), load(vs, j * dim * BLOCK + n, LANES)
        store(zs, n, LANES, one)
        store(zs, dim * BLOCK + n, LANES, two)
        if wide > 2 * dim:
            store(zs, 2 * dim * BLOCK + n, LANES, one * two)


@njit(cache=True, nogil=True)
def fill_rows(v: Any, i: Any, j: Any, block: Any, wide: Any, room: Any, zs: Any) -> None:
    """z and a one behind it, row by row (BLOCK, room), of v (B, F, D)."""
    count, fields, dim = v.shape
    vs, start = pointer(v), block * BLOCK
    some = min(dim, LANES)
    for b in range(min(BLOCK, count - start)):
        one, two, to = ((start + b) * fields + i) * dim, ((start + b) * fields + j) * dim, b * room
        for c in range(0, dim, LANES):
            here = min(c, dim - some)
            x, y = load(vs, one + here, some), load(vs, two + here, some)
            store(zs, to + here, some, x)
            store(zs, to + dim + here, some, y)
            if wide > 2 * dim:
                store(zs, to + 2 * dim + here, some, x * y)


@njit(cache=True, nogil=True)
def empty(lanes: Any, sums: Any) -> None:
    """Adds lanes (n, BLOCK) to sums of the same shape, and empties them."""
    for k in range(len(lanes)):
        for b in range(BLOCK):
            sums[k, b] += lanes[k, b]
            lanes[k, b] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def forward(
    v: Any, first: Any, second: Any, weight: Any, bias: Any, gain: Any, shift: Any, last: Any, last_bias: Any, eps: Any,
    low: Any, high: Any, units: Any, stats: Any, out: Any,
) -> None:  # fmt: skip
    """Fills units (blocks, P, H, BLOCK), or (1, ...) where nothing is kept, stats (blocks, 2, BLOCK) and out (B, P, U).

    v (B, F, D), weight (P, 2 D or 3 D, H), bias (P, H), gain and shift (1 or P, H), last (P, H, U), last_bias (P, U).
    """
    (pairs, wide, height), dim, outs, kept = weight.shape, v.shape[2], last.shape[2], len(units) == len(stats)
    rows, results = v.reshape(len(v), -1), out.reshape(len(v), -1)
    turned, z = np.empty((rows.shape[1], BLOCK), v.dtype), np.empty((wide, BLOCK), v.dtype)
    found, lanes, sums = np.empty((pairs * outs, BLOCK), v.dtype), np.zeros((2, BLOCK), v.dtype), np.zeros((2, BLOCK))
    near, y = np.empty(BLOCK, v.dtype), np.empty((height, BLOCK), v.dtype)
    vs, zs, xs, ws, bs, ys, fs = (
        pointer(turned), pointer(z), pointer(units), pointer(weight), pointer(bias), pointer(y), pointer(found),
    )  # fmt: skip
    partial, nears, ls, cs = pointer(lanes), pointer(near), pointer(last), pointer(last_bias)
    gains, shifts, zero = pointer(gain), pointer(shift), spread(v.dtype.type(0))
    for block in range(low, high):
        mine = (block if kept else 0) * pairs * height * BLOCK
        turn_in(rows, block, turned)
        sums[:] = 0
        for p in range(pairs):
            here = mine + p * height * BLOCK
            fill_inputs(vs, dim, first[p], second[p], wide, zs)
            product((xs, here, BLOCK), (bs, p * height), (ws, p * wide * height, height, 1), (zs, 0, BLOCK), wide, height, BLOCK)
            if p == 0:
                # Squares are taken from the mean of the first pair's units, near that of all: they do not cancel out.
                for b in range(BLOCK):
                    near[b] = 0
                    for h in range(height):
                        near[b] += xs[here + h * BLOCK + b] / height
            for c in range(0, BLOCK, LANES):
                one, two, off = load(partial, c, LANES), load(partial, BLOCK + c, LANES), load(nears, c, LANES)
                for h in range(height):
                    far = load(xs, here + h * BLOCK + c, LANES) - off
                    one, two = one + far, two + far * far
                store(partial, c, LANES, one)
                store(partial, BLOCK + c, LANES, two)
            if p % GROUP == GROUP - 1 or p == pairs - 1:
                empty(lanes, sums)
        for b in range(BLOCK):
            far, square = sums[0, b] / (pairs * height), sums[1, b] / (pairs * height)
            stats[block, 0, b] = near[b] + far
            stats[block, 1, b] = 1 / math.sqrt(max(square - far * far, 0.0) + eps)
        for p in range(pairs):
            here, own = mine + p * height * BLOCK, 0 if len(gain) == 1 else p * height
            for c in range(0, BLOCK, LANES):
                mean, scale = load(pointer(stats), 2 * block * BLOCK + c, LANES), load(pointer(stats), (2 * block + 1) * BLOCK + c, LANES)
                for h in range(height):
                    u = (load(xs, here + h * BLOCK + c, LANES) - mean) * scale
                    store(ys, h * BLOCK + c, LANES, larger(u * gains[own + h] + shifts[own + h], zero))
            product((fs, p * outs * BLOCK, BLOCK), (cs, p * outs), (ls, p * height * outs, outs, 1), (ys, 0, BLOCK), height, outs, BLOCK)
        turn_out(found, block, results)


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    dout: Any, v: Any, first: Any, second: Any, weight: Any, gain: Any, shift: Any, last: Any, units: Any, stats: Any,
    low: Any, high: Any, dweight: Any, dgain: Any, dshift: Any, dlast: Any, dv: Any,
) -> None:  # fmt: skip
    """Fills dv (B, F, D); adds to dweight (P, H, room), db behind dW^T in it, to dgain and dshift (1 or P, H, 16), whose
    lanes are still to be added up, and to dlast (P, H, 16 or more)."""
    (pairs, wide, height), dim, outs = weight.shape, v.shape[2], last.shape[2]
    room, last_room, kind = dweight.shape[2], dlast.shape[2], v.dtype
    rows, results, grads = v.reshape(len(v), -1), dv.reshape(len(v), -1), dout.reshape(len(v), -1)
    turned, z, z_rows = np.empty((rows.shape[1], BLOCK), kind), np.empty((wide, BLOCK), kind), np.zeros((BLOCK, room), kind)
    by_v, by_z, z_rows[:, wide] = np.empty_like(turned), np.empty((dim, BLOCK), kind), 1
    given, g_rows = np.empty((grads.shape[1], BLOCK), kind), np.zeros((BLOCK, last_room), kind)
    y, dy, zeros = np.empty((height, BLOCK), kind), np.empty((height, BLOCK), kind), np.zeros(height, kind)
    lanes, sums = np.zeros((2, BLOCK), kind), np.zeros((2, BLOCK))
    vs, zs, xs, ws, zrs, dvs, dzs, gs, grs = (
        pointer(turned), pointer(z), pointer(units), pointer(weight), pointer(z_rows), pointer(by_v), pointer(by_z),
        pointer(given), pointer(g_rows),
    )  # fmt: skip
    ys, dys, none, partial, ls, ds = pointer(y), pointer(dy), pointer(zeros), pointer(lanes), pointer(last), pointer(dout)
    gains, shifts, zero, all_stats = pointer(gain), pointer(shift), spread(kind.type(0)), pointer(stats)
    by_weight, by_gain, by_shift, by_last = pointer(dweight), pointer(dgain), pointer(dshift), pointer(dlast)
    for block in range(low, high):
        count = min(BLOCK, len(v) - block * BLOCK)
        turn_in(rows, block, turned)
        turn_in(grads, block, given)
        by_v[:] = 0
        if count < BLOCK:
            z_rows[count:], g_rows[count:] = 0, 0
        for turn in range(2):
            if turn:
                sums /= pairs * height
                for k in range(2):
                    for b in range(BLOCK):
                        lanes[k, b] = sums[k, b]
            else:
                sums[:], lanes[:] = 0, 0
            for p in range(pairs):
                here, own = (block * pairs + p) * height * BLOCK, 0 if len(gain) == 1 else p * height
                product((dys, 0, BLOCK), (none, 0), (ls, p * height * outs, 1, outs), (gs, p * outs * BLOCK, BLOCK), outs, height, BLOCK)
                for c in range(0, BLOCK, LANES):
                    mean, scale = load(all_stats, 2 * block * BLOCK + c, LANES), load(all_stats, (2 * block + 1) * BLOCK + c, LANES)
                    one, two = load(partial, c, LANES), load(partial, BLOCK + c, LANES)
                    for h in range(height):
                        at = h * BLOCK + c
                        u = (load(xs, here + at, LANES) - mean) * scale
                        positive = larger(u * gains[own + h] + shifts[own + h], zero)
                        g = where_zero(positive, zero, load(dys, at, LANES))
                        d = g * gains[own + h]
                        if turn:
                            store(dys, at, LANES, (d - u * two - one) * scale)
                        else:
                            one, two = one + d, two + d * u
                            store(ys, at, LANES, positive)
                            lane = (own + h) * LANES
                            store(by_gain, lane, LANES, load(by_gain, lane, LANES) + g * u)
                            store(by_shift, lane, LANES, load(by_shift, lane, LANES) + g)
                    if not turn:
                        store(partial, c, LANES, one)
                        store(partial, BLOCK + c, LANES, two)
                if turn:
                    i, j, start = first[p] * dim * BLOCK, second[p] * dim * BLOCK, p * wide * height
                    added_product((dvs, i, BLOCK), (ws, start, 1, height), (dys, 0, BLOCK), height, dim, BLOCK)
                    added_product((dvs, j, BLOCK), (ws, start + dim * height, 1, height), (dys, 0, BLOCK), height, dim, BLOCK)
                    if wide > 2 * dim:
                        product((dzs, 0, BLOCK), (none, 0), (ws, start + 2 * dim * height, 1, height), (dys, 0, BLOCK), height, dim, BLOCK)
                        for n in range(0, dim * BLOCK, LANES):
                            dz = load(dzs, n, LANES)
                            store(dvs, i + n, LANES, load(dvs, i + n, LANES) + dz * load(vs, j + n, LANES))
                            store(dvs, j + n, LANES, load(dvs, j + n, LANES) + dz * load(vs, i + n, LANES))
                    fill_rows(v, first[p], second[p], block, wide, room, zrs)
                    added_product((by_weight, p * height * room, room), (dys, 0, 1, BLOCK), (zrs, 0, room), count, height, room)
                else:
                    for b in range(count):
                        for c in range(0, outs, LANES):
                            from_ = ((block * BLOCK + b) * pairs + p) * outs + c
                            store(grs, b * last_room + c, LANES, load(ds, from_, outs - c))
                    added_product((by_last, p * height * last_room, last_room), (ys, 0, 1, BLOCK), (grs, 0, last_room), count, height, last_room)
                    if p % GROUP == GROUP - 1 or p == pairs - 1:
                        empty(lanes, sums)
        turn_out(by_v, block, results)
