"""The micro networks of all pairs, forward and back, without an array of their inputs (CPU, numba).

Of a pair's input z = [v_i, v_j] or [v_i, v_j, v_i * v_j] come units x = W^T z + b; with m and r = 1 / sqrt(var + eps)
of a row's n = P H units and u = (x - m) r: y = max(0, gain u + shift), out = L^T y + c. Back, with dy = L dout where
y > 0, else 0, and d = dy gain: dx = r (d - sum d / n - u sum (d u) / n), dz = W dx, dW = sum z dx^T, db = sum dx,
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

from fieldwise.loops.blocks import BLOCK, turn_in, turn_out
from fieldwise.loops.halves import pack, pack_along, room, room_along
from fieldwise.loops.instructions import keep, pointer, prefetch_second
from fieldwise.loops.lanes import LANES, larger, load, spread, store, total, where_zero
from fieldwise.loops.tiles import added_product, product

GROUP = 32


# Blocks whose gradients are taken pair by pair: a pair's sums, which lie in the third cache, are fetched once for all.
TOGETHER = 8


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
def fill_rows(v: Any, i: Any, j: Any, block: Any, wide: Any, size: Any, zs: Any) -> None:
    """z and a one behind it, row by row (BLOCK, size), of v (B, F, D)."""
    count, fields, dim = v.shape
    vs, start = pointer(v), block * BLOCK
    some = min(dim, LANES)
    for b in range(min(BLOCK, count - start)):
        one, two, to = ((start + b) * fields + i) * dim, ((start + b) * fields + j) * dim, b * size
        for c in range(0, dim, LANES):
            here = min(c, dim - some)
            x, y = load(vs, one + here, some), load(vs, two + here, some)
            store(zs, to + here, some, x)
            store(zs, to + dim + here, some, y)
            if wide > 2 * dim:
                store(zs, to + 2 * dim + here, some, x * y)


@njit(cache=True, nogil=True)
def ask(units: Any, at: Any, size: Any, end: Any) -> None:
    """Units that come next are asked for: they are too many for the caches, and pages too short to be guessed."""
    if at + size <= end:
        for n in range(at, at + size, LANES):
            prefetch_second(units, n)


@njit(cache=True, nogil=True)
def empty(lanes: Any, sums: Any) -> None:
    """Adds lanes (n, BLOCK) to sums of the same shape, and empties them."""
    for k in range(len(lanes)):
        for b in range(BLOCK):
            sums[k, b] += lanes[k, b]
            lanes[k, b] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def forward(
    v: Any, first: Any, second: Any, wide: Any, weight: Any, bias: Any, gain: Any, shift: Any, last: Any,
    last_bias: Any, eps: Any, low: Any, high: Any, units: Any, stats: Any, out: Any,
) -> None:  # fmt: skip
    """Fills units (blocks, P, H, BLOCK), or (1, ...) where nothing is kept, stats (blocks, 2, BLOCK) and out (B, P, U).

    v (B, F, D), weight (P, wide, H), bias (P, H), gain and shift (1 or P, H), last (P, H, U), last_bias (P, U), where
    `wide` is 2 D or 3 D. The weight may be words of two inputs each, (P, wide / 2, H).
    """
    (pairs, depth, height), dim, outs, kept = weight.shape, v.shape[2], last.shape[2], len(units) == len(stats)
    rows, results, size = v.reshape(len(v), -1), out.reshape(len(v), -1), height * BLOCK
    turned, z = np.empty((rows.shape[1], BLOCK), v.dtype), np.empty((wide, BLOCK), v.dtype)
    inputs, near = room(z, weight), np.empty(BLOCK, v.dtype)
    found, lanes, sums = np.empty((pairs * outs, BLOCK), v.dtype), np.zeros((2, BLOCK), v.dtype), np.zeros((2, BLOCK))
    y = np.empty((height, BLOCK), v.dtype)
    vs, zs, xs, ws, bs, ls, cs = (
        pointer(turned), pointer(z), pointer(units), pointer(weight), pointer(bias), pointer(last), pointer(last_bias),
    )  # fmt: skip
    ys, fs, gains, shifts, zero = pointer(y), pointer(found), pointer(gain), pointer(shift), spread(v.dtype.type(0))
    for block in range(low, high):
        mine, own_stats = (block if kept else 0) * pairs * size, pointer(stats[block])
        turn_in(rows, block, turned)
        sums[:] = 0
        for p in range(pairs):
            here = mine + p * size
            fill_inputs(vs, dim, first[p], second[p], wide, zs)
            pack(z, inputs)
            to_units = (ws, p * depth * height, height, 1)
            product((xs, here, BLOCK), (bs, p * height), to_units, (pointer(inputs), 0, BLOCK), depth, height, BLOCK)
            if p == 0:
                # Squares are taken from the mean of the first pair's units, near that of all: they do not cancel out.
                near[:] = 0
                for h in range(height):
                    for b in range(BLOCK):
                        near[b] += xs[here + h * BLOCK + b] / height
            add_moments(xs, here, height, pointer(near), pointer(lanes))
            if p % GROUP == GROUP - 1 or p == pairs - 1:
                empty(lanes, sums)
        for b in range(BLOCK):
            far, square = sums[0, b] / (pairs * height), sums[1, b] / (pairs * height)
            stats[block, 0, b] = near[b] + far
            stats[block, 1, b] = 1 / math.sqrt(max(square - far * far, 0.0) + eps)
        for p in range(pairs):
            here, own = mine + p * size, 0 if len(gain) == 1 else p * height
            for c in range(0, BLOCK, LANES):
                mean, scale = load(own_stats, c, LANES), load(own_stats, BLOCK + c, LANES)
                for h in range(height):
                    u = (load(xs, here + h * BLOCK + c, LANES) - mean) * scale
                    store(ys, h * BLOCK + c, LANES, larger(u * gains[own + h] + shifts[own + h], zero))
            of_pair = (ls, p * height * outs, outs, 1)
            product((fs, p * outs * BLOCK, BLOCK), (cs, p * outs), of_pair, (ys, 0, BLOCK), height, outs, BLOCK)
        turn_out(found, block, results)
    keep((z, inputs, y))


@njit(cache=True, nogil=True)
def add_moments(xs: Any, here: Any, height: Any, near: Any, lanes: Any) -> None:
    """Adds sums of x - near, and of its squares, to lanes (2, BLOCK)."""
    for c in range(0, BLOCK, LANES):
        one, two, off = load(lanes, c, LANES), load(lanes, BLOCK + c, LANES), load(near, c, LANES)
        for h in range(height):
            far = load(xs, here + h * BLOCK + c, LANES) - off
            one, two = one + far, two + far * far
        store(lanes, c, LANES, one)
        store(lanes, BLOCK + c, LANES, two)


@njit(cache=True, nogil=True, error_model="numpy")
def sum_gradients(
    dout: Any, given: Any, pairs: Any, gain: Any, shift: Any, last: Any, units: Any, stats: Any, start: Any,
    dgain: Any, dshift: Any, dlast: Any, means: Any,
) -> None:  # fmt: skip
    """A block's first turn: fills means (2, BLOCK), sum d / n and sum (d u) / n, and adds to dgain, dshift and dlast.

    dout (B, P, U) is all rows', `start` the block's first of them; given (P U, BLOCK) is the block's part of it.
    """
    (height, outs), last_room, kind = last.shape[1:], dlast.shape[2], means.dtype
    count, zero = min(BLOCK, len(dout) - start), spread(kind.type(0))
    y, dy = np.empty((height, BLOCK), kind), np.empty((height, BLOCK), kind)
    sums, g_rows = np.zeros((2, BLOCK)), np.zeros((BLOCK, last_room), kind)
    ys, dys, lanes, gs, grs = pointer(y), pointer(dy), pointer(means), pointer(given), pointer(g_rows)
    gains, shifts, ls, xs, ds, own_stats = (
        pointer(gain), pointer(shift), pointer(last), pointer(units), pointer(dout), pointer(stats),
    )  # fmt: skip
    by_gain, by_shift, by_last = pointer(dgain), pointer(dshift), pointer(dlast)
    means[:] = 0
    for p in range(pairs):
        here, own = p * height * BLOCK, 0 if len(gain) == 1 else p * height
        to_units = (ls, p * height * outs, 1, outs)
        ask(xs, here + 2 * height * BLOCK, height * BLOCK, units.size)
        product((dys, 0, BLOCK), None, to_units, (gs, p * outs * BLOCK, BLOCK), outs, height, BLOCK)
        for c in range(0, BLOCK, LANES):
            mean, scale = load(own_stats, c, LANES), load(own_stats, BLOCK + c, LANES)
            one, two = load(lanes, c, LANES), load(lanes, BLOCK + c, LANES)
            for h in range(height):
                at, lane, factor = h * BLOCK + c, (own + h) * LANES, gains[own + h]
                u = (load(xs, here + at, LANES) - mean) * scale
                positive = larger(u * factor + shifts[own + h], zero)
                g = where_zero(positive, zero, load(dys, at, LANES))
                one, two = one + g * factor, two + g * factor * u
                store(ys, at, LANES, positive)
                store(by_gain, lane, LANES, load(by_gain, lane, LANES) + g * u)
                store(by_shift, lane, LANES, load(by_shift, lane, LANES) + g)
            store(lanes, c, LANES, one)
            store(lanes, BLOCK + c, LANES, two)
        if p % GROUP == GROUP - 1 or p == pairs - 1:
            empty(means, sums)
        if outs == 1:
            for h in range(height):
                found = zero
                for c in range(0, BLOCK, LANES):
                    found = found + load(ys, h * BLOCK + c, LANES) * load(gs, p * BLOCK + c, LANES)
                by_last[(p * height + h) * last_room] += total(found, 0)
        else:
            for b in range(count):
                for c in range(0, outs, LANES):
                    from_ = ((start + b) * pairs + p) * outs + c
                    store(grs, b * last_room + c, LANES, load(ds, from_, outs - c))
            into = (by_last, p * height * last_room, last_room)
            added_product(into, (ys, 0, 1, BLOCK), (grs, 0, last_room), count, height, last_room)
    for k in range(2):
        for b in range(BLOCK):
            means[k, b] = sums[k, b] / (pairs * height)
    keep((y, dy, g_rows))


@njit(cache=True, nogil=True, error_model="numpy")
def backward(
    dout: Any, v: Any, first: Any, second: Any, wide: Any, weight: Any, gain: Any, shift: Any, last: Any, units: Any,
    stats: Any, low: Any, high: Any, dweight: Any, dgain: Any, dshift: Any, dlast: Any, dv: Any,
) -> None:  # fmt: skip
    """Fills dv (B, F, D); adds to dweight (P, H, size), dgain and dshift (1 or P, H, 16), dlast (P, H, 16).

    db is behind dW^T; lanes of dgain and dshift are still to be added up. The weight may be words of
    two units each, (P, wide, H / 2).
    """
    (pairs, _, depth), dim, (_, height, outs), kind = weight.shape, v.shape[2], last.shape, v.dtype
    rows, results, grads = v.reshape(len(v), -1), dv.reshape(len(v), -1), dout.reshape(len(v), -1)
    turned, given = np.empty((TOGETHER, rows.shape[1], BLOCK), kind), np.empty((TOGETHER, grads.shape[1], BLOCK), kind)
    by_v, means, by_z = np.empty_like(turned), np.empty((TOGETHER, 2, BLOCK), kind), np.empty((dim, BLOCK), kind)
    dx, z_rows = np.empty((height, BLOCK), kind), np.zeros((BLOCK, dweight.shape[2]), kind)
    z_rows[:, wide], size = 1, dweight.shape[2]
    by_unit, along, by_row = room(dx, weight), room_along(dx, weight), room(z_rows, weight)
    ws, ls, xs, zrs, dzs = pointer(weight), pointer(last), pointer(units), pointer(z_rows), pointer(by_z)
    dxs, gains, shifts, by_weight, zero = (
        pointer(dx),
        pointer(gain),
        pointer(shift),
        pointer(dweight),
        spread(kind.type(0)),
    )
    for chunk in range(low, high, TOGETHER):
        together = min(TOGETHER, high - chunk)
        for k in range(together):
            turn_in(rows, chunk + k, turned[k])
            turn_in(grads, chunk + k, given[k])
            part = units[chunk + k], stats[chunk + k], (chunk + k) * BLOCK
            sum_gradients(dout, given[k], pairs, gain, shift, last, *part, dgain, dshift, dlast, means[k])
        by_v[:] = 0
        for p in range(pairs):
            own, i, j = 0 if len(gain) == 1 else p * height, first[p] * dim * BLOCK, second[p] * dim * BLOCK
            to_units, start = (ls, p * height * outs, 1, outs), p * wide * depth
            for k in range(together):
                gs, vs, dvs = pointer(given[k]), pointer(turned[k]), pointer(by_v[k])
                lanes, own_stats = pointer(means[k]), pointer(stats[chunk + k])
                here = ((chunk + k) * pairs + p) * height * BLOCK
                product((dxs, 0, BLOCK), None, to_units, (gs, p * outs * BLOCK, BLOCK), outs, height, BLOCK)
                for c in range(0, BLOCK, LANES):
                    mean, scale = load(own_stats, c, LANES), load(own_stats, BLOCK + c, LANES)
                    one, two = load(lanes, c, LANES), load(lanes, BLOCK + c, LANES)
                    for h in range(height):
                        at, factor = h * BLOCK + c, gains[own + h]
                        u = (load(xs, here + at, LANES) - mean) * scale
                        g = where_zero(larger(u * factor + shifts[own + h], zero), zero, load(dxs, at, LANES))
                        store(dxs, at, LANES, (g * factor - u * two - one) * scale)
                pack(dx, by_unit)
                pack_along(dx, along)
                of_units = (pointer(by_unit), 0, BLOCK)
                after = here + pairs * height * BLOCK if k + 1 < together else (chunk * pairs + p + 1) * height * BLOCK
                ask(xs, after, height * BLOCK, units.size)
                added_product((dvs, i, BLOCK), (ws, start, 1, depth), of_units, depth, dim, BLOCK)
                added_product((dvs, j, BLOCK), (ws, start + dim * depth, 1, depth), of_units, depth, dim, BLOCK)
                if wide > 2 * dim:
                    third = (ws, start + 2 * dim * depth, 1, depth)
                    product((dzs, 0, BLOCK), None, third, of_units, depth, dim, BLOCK)
                    for n in range(0, dim * BLOCK, LANES):
                        dz = load(dzs, n, LANES)
                        store(dvs, i + n, LANES, load(dvs, i + n, LANES) + dz * load(vs, j + n, LANES))
                        store(dvs, j + n, LANES, load(dvs, j + n, LANES) + dz * load(vs, i + n, LANES))
                fill_rows(v, first[p], second[p], chunk + k, wide, size, zrs)
                pack(z_rows, by_row)
                # Rows that the last block lacks have no gradient: what z_rows holds there does not matter.
                of_dx, length = (pointer(along), 0, 1, along.shape[1]), along.shape[1]
                into = (by_weight, p * height * size, size)
                added_product(into, of_dx, (pointer(by_row), 0, size), length, height, size)
        for k in range(together):
            turn_out(by_v[k], chunk + k, results)
    keep((by_z, dx, z_rows, by_unit, along, by_row))


@njit(cache=True, nogil=True)
def collect(sums: Any, low: Any, high: Any, dweight: Any, dbias: Any) -> None:
    """The threads' dweight (threads, P, H, size) of pairs low..high -> (P, 2 D or 3 D, H) and (P, H)."""
    wide = dweight.shape[1]
    for p in range(low, high):
        for h in range(sums.shape[2]):
            for t in range(1, len(sums)):
                for n in range(wide + 1):
                    sums[0, p, h, n] += sums[t, p, h, n]
            dbias[p, h] = sums[0, p, h, wide]
        for n in range(wide):
            for h in range(sums.shape[2]):
                dweight[p, n, h] = sums[0, p, h, n]
