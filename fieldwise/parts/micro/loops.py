"""The micro networks of all pairs, forward and backward, without an array of their inputs (CPU, numba).

A pair's input z = [v_i, v_j] or [v_i, v_j, v_i * v_j] gives units x = W^T z + b. With m and r = 1 / sqrt(var + eps)
of a row's n = P H units and u = (x - m) r: y = max(0, gain u + shift), out = L^T y + c. Back, with dy = L dout where
y > 0, else 0, and d = dy gain: dx = r (d - sum d / n - u sum (d u) / n), dz = W dx, dW = sum z dx^T, db = sum dx,
dL = sum y dout^T, dgain = sum dy u, dshift = sum dy. The formula is `MicroNetwork.forward`.

A block is BLOCK rows of the batch, sixteen in each register, so that norm and ReLU never work across lanes and every
product is one of `tiles`. The backward pass gets only the units (blocks, P, H, BLOCK). The last block is padded with
zero rows. Functions handle blocks low..high. Sums over GROUP pairs are kept in lanes, sums over more in float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fieldwise.loops.blocks import BLOCK, turn_in, turn_out
from fieldwise.loops.halves import pack, pack_along, room, room_along
from fieldwise.loops.instructions import keep, pointer, prefetch_second
from fieldwise.loops.lanes import LANES, larger, load, spread, store, total, where_zero
from fieldwise.loops.tiles import added_product, product

GROUP = 32
# Blocks whose gradients are computed together, pair by pair: a pair's sums come from the third-level cache once.
TOGETHER = 8


class Inputs(NamedTuple):
    """Vectors v (B, F, D), both fields (P,) of each pair, and the width of a pair's input, 2 D or 3 D."""

    v: Any
    first: Any
    second: Any
    wide: Any


class Layers(NamedTuple):
    """weight (P, wide, H), gain and shift (1 or P, H), last (P, H, U).

    The weight may be words of two bfloat16: two inputs a word forward, (P, wide / 2, H), two units backward,
    (P, wide, H / 2).
    """

    weight: Any
    gain: Any
    shift: Any
    last: Any


class Biases(NamedTuple):
    """The first layer's (P, H) and the last layer's (P, U)."""

    bias: Any
    last_bias: Any


class Kept(NamedTuple):
    """For the backward pass: units (blocks, P, H, BLOCK), or room for one block's, and stats (blocks, 2, BLOCK)."""

    units: Any
    stats: Any


class Sums(NamedTuple):
    """A thread's gradients: weight (P, H, size), which is W^T followed by b, gain and shift (1 or P, H, 16), and last
    (P, H, 16). The lanes of gain and shift are not added up yet.
    """

    weight: Any
    gain: Any
    shift: Any
    last: Any


class Sizes(NamedTuple):
    """The sizes of a vector, a pair's input, its weights' last axis, the units and the outputs."""

    dim: Any
    wide: Any
    depth: Any
    height: Any
    outs: Any


class Pointers(NamedTuple):
    """Pointers to the arrays of `Layers`."""

    weight: Any
    gain: Any
    shift: Any
    last: Any


class Pair(NamedTuple):
    """A pair's number, where its two vectors start in a block, and where its gains start."""

    number: Any
    i: Any
    j: Any
    gains: Any


@njit(cache=True, nogil=True)
def fill_inputs(vs: Any, dim: Any, i: Any, j: Any, wide: Any, zs: Any) -> None:
    """Fills z (2 D or 3 D, BLOCK) of fields i and j from v (F D, BLOCK)."""
    for n in range(0, dim * BLOCK, LANES):
        one, two = load(vs, i * dim * BLOCK + n, LANES), load(vs, j * dim * BLOCK + n, LANES)
        store(zs, n, LANES, one)
        store(zs, dim * BLOCK + n, LANES, two)
        if wide > 2 * dim:
            store(zs, 2 * dim * BLOCK + n, LANES, one * two)


@njit(cache=True, nogil=True)
def fill_rows(v: Any, i: Any, j: Any, block: Any, wide: Any, size: Any, zs: Any) -> None:
    """Fills z row by row (BLOCK, size) from v (B, F, D); the caller has put a one after it."""
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
    """Prefetches the next units: they exceed the caches, and the processor does not prefetch across pages."""
    if at + size <= end:
        for n in range(at, at + size, LANES):
            prefetch_second(units, n)


@njit(cache=True, nogil=True)
def empty(lanes: Any, sums: Any) -> None:
    """Adds lanes (n, BLOCK) to sums of the same shape, and sets the lanes to zero."""
    for k in range(len(lanes)):
        for b in range(BLOCK):
            sums[k, b] += lanes[k, b]
            lanes[k, b] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def forward(
    inputs: Inputs, layers: Layers, biases: Biases, eps: Any, low: Any, high: Any, kept: Kept, out: Any
) -> None:
    """Fills out (B, P, U) and the stats of `kept`, and its units if it has room for those of all blocks."""
    v = inputs.v
    rows, results = v.reshape(len(v), -1), out.reshape(len(v), -1)
    turned, found = np.empty((rows.shape[1], BLOCK), v.dtype), np.empty((results.shape[1], BLOCK), v.dtype)
    for block in range(low, high):
        units, stats = kept.units[block if len(kept.units) == len(kept.stats) else 0], kept.stats[block]
        turn_in(rows, block, turned)
        fill_units(inputs, turned, layers, biases.bias, eps, units, stats)
        fill_outputs(layers, biases.last_bias, units, stats, found)
        turn_out(found, block, results)


@njit(cache=True, nogil=True, error_model="numpy")
def fill_units(inputs: Inputs, turned: Any, layers: Layers, bias: Any, eps: Any, units: Any, stats: Any) -> None:
    """Fills a block's units x (P, H, BLOCK) from its vectors (F D, BLOCK), and stats (2, BLOCK), each row's m and r."""
    (pairs, depth, height), wide, kind = layers.weight.shape, inputs.wide, turned.dtype
    z, near, lanes, sums = (
        np.empty((wide, BLOCK), kind),
        np.empty(BLOCK, kind),
        np.zeros((2, BLOCK), kind),
        np.zeros((2, BLOCK)),
    )
    packed = room(z, layers.weight)
    vs, zs, xs, ws, bs = pointer(turned), pointer(z), pointer(units), pointer(layers.weight), pointer(bias)
    for p in range(pairs):
        here = p * height * BLOCK
        fill_inputs(vs, inputs.v.shape[2], inputs.first[p], inputs.second[p], wide, zs)
        pack(z, packed)
        to_units = (ws, p * depth * height, height, 1)
        product((xs, here, BLOCK), (bs, p * height), to_units, (pointer(packed), 0, BLOCK), depth, height, BLOCK)
        if p == 0:
            # Squares are of the distance to the first pair's mean, which is near that of all: no cancellation.
            near[:] = 0
            for h in range(height):
                for b in range(BLOCK):
                    near[b] += xs[here + h * BLOCK + b] / height
        add_moments(xs, here, height, pointer(near), pointer(lanes))
        if p % GROUP == GROUP - 1 or p == pairs - 1:
            empty(lanes, sums)
    for b in range(BLOCK):
        far, square = sums[0, b] / (pairs * height), sums[1, b] / (pairs * height)
        stats[0, b] = near[b] + far
        stats[1, b] = 1 / math.sqrt(max(square - far * far, 0.0) + eps)
    keep((z, near, lanes, packed))


@njit(cache=True, nogil=True, error_model="numpy")
def fill_outputs(layers: Layers, last_bias: Any, units: Any, stats: Any, found: Any) -> None:
    """Fills a block's outputs (P U, BLOCK) from its units: norm, ReLU and the last layer."""
    pairs, height, outs = layers.last.shape
    y, zero = np.empty((height, BLOCK), found.dtype), spread(found.dtype.type(0))
    xs, ys, fs, ls, cs = pointer(units), pointer(y), pointer(found), pointer(layers.last), pointer(last_bias)
    gains, shifts, own_stats = pointer(layers.gain), pointer(layers.shift), pointer(stats)
    for p in range(pairs):
        here, own = p * height * BLOCK, 0 if len(layers.gain) == 1 else p * height
        for c in range(0, BLOCK, LANES):
            mean, scale = load(own_stats, c, LANES), load(own_stats, BLOCK + c, LANES)
            for h in range(height):
                u = (load(xs, here + h * BLOCK + c, LANES) - mean) * scale
                store(ys, h * BLOCK + c, LANES, larger(u * gains[own + h] + shifts[own + h], zero))
        of_pair = (ls, p * height * outs, outs, 1)
        product((fs, p * outs * BLOCK, BLOCK), (cs, p * outs), of_pair, (ys, 0, BLOCK), height, outs, BLOCK)
    keep((y,))


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
    dout: Any, given: Any, layers: Layers, units: Any, stats: Any, start: Any, sums: Sums, means: Any
) -> None:
    """First pass over a block: fills means (2, BLOCK), sum d / n and sum (d u) / n, and adds to all sums but `weight`.

    dout (B, P, U) is of all rows, of which the block begins at `start`; given (P U, BLOCK) is the block's part of it.
    """
    (pairs, height, outs), last_room, kind = layers.last.shape, sums.last.shape[2], means.dtype
    count, zero = min(BLOCK, len(dout) - start), spread(kind.type(0))
    y, dy = np.empty((height, BLOCK), kind), np.empty((height, BLOCK), kind)
    totals, g_rows = np.zeros((2, BLOCK)), np.zeros((BLOCK, last_room), kind)
    ys, dys, lanes, gs, grs = pointer(y), pointer(dy), pointer(means), pointer(given), pointer(g_rows)
    gains, shifts, ls = pointer(layers.gain), pointer(layers.shift), pointer(layers.last)
    xs, ds, own_stats = pointer(units), pointer(dout), pointer(stats)
    by_gain, by_shift, by_last = pointer(sums.gain), pointer(sums.shift), pointer(sums.last)
    means[:] = 0
    for p in range(pairs):
        here, own = p * height * BLOCK, 0 if len(layers.gain) == 1 else p * height
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
            empty(means, totals)
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
            means[k, b] = totals[k, b] / (pairs * height)
    keep((y, dy, g_rows))


@njit(cache=True, nogil=True, error_model="numpy")
def backward(dout: Any, inputs: Inputs, layers: Layers, kept: Kept, low: Any, high: Any, sums: Sums, dv: Any) -> None:
    """Fills dv (B, F, D) and adds to the sums."""
    v, weight, (pairs, height, outs), kind = inputs.v, layers.weight, layers.last.shape, inputs.v.dtype
    dim, wide, depth, size = v.shape[2], inputs.wide, weight.shape[2], sums.weight.shape[2]
    rows, results, grads = v.reshape(len(v), -1), dv.reshape(len(v), -1), dout.reshape(len(v), -1)
    turned, given = np.empty((TOGETHER, rows.shape[1], BLOCK), kind), np.empty((TOGETHER, grads.shape[1], BLOCK), kind)
    by_v, means, by_z = np.empty_like(turned), np.empty((TOGETHER, 2, BLOCK), kind), np.empty((dim, BLOCK), kind)
    dx, z_rows, zero = np.empty((height, BLOCK), kind), np.zeros((BLOCK, size), kind), spread(kind.type(0))
    z_rows[:, wide] = 1
    by_unit, along, by_row = room(dx, weight), room_along(dx, weight), room(z_rows, weight)
    xs, by_weight, sizes = pointer(kept.units), pointer(sums.weight), Sizes(dim, wide, depth, height, outs)
    at = Pointers(pointer(weight), pointer(layers.gain), pointer(layers.shift), pointer(layers.last))
    for chunk in range(low, high, TOGETHER):
        together = min(TOGETHER, high - chunk)
        for k in range(together):
            turn_in(rows, chunk + k, turned[k])
            turn_in(grads, chunk + k, given[k])
            part = kept.units[chunk + k], kept.stats[chunk + k], (chunk + k) * BLOCK
            sum_gradients(dout, given[k], layers, *part, sums, means[k])
        by_v[:] = 0
        for p in range(pairs):
            i, j, own = inputs.first[p], inputs.second[p], 0 if len(layers.gain) == 1 else p * height
            pair = Pair(p, i * dim * BLOCK, j * dim * BLOCK, own)
            for k in range(together):
                here = ((chunk + k) * pairs + p) * height * BLOCK
                norm = pointer(kept.stats[chunk + k]), pointer(means[k])
                fill_unit_gradients(at, sizes, pair, xs, here, norm, pointer(given[k]), zero, pointer(dx))
                pack(dx, by_unit)
                pack_along(dx, along)
                after = here + pairs * height * BLOCK if k + 1 < together else (chunk * pairs + p + 1) * height * BLOCK
                ask(xs, after, height * BLOCK, kept.units.size)
                of_units = (pointer(by_unit), 0, BLOCK)
                add_to_vectors(at, sizes, pair, of_units, pointer(turned[k]), pointer(by_z), pointer(by_v[k]))
                fill_rows(v, i, j, chunk + k, wide, size, pointer(z_rows))
                pack(z_rows, by_row)
                # Padding rows of the last block have no gradient, so what z_rows holds there does not matter.
                of_dx, length = (pointer(along), 0, 1, along.shape[1]), along.shape[1]
                into = (by_weight, p * height * size, size)
                added_product(into, of_dx, (pointer(by_row), 0, size), length, height, size)
        for k in range(together):
            turn_out(by_v[k], chunk + k, results)
    keep((by_z, dx, z_rows, by_unit, along, by_row))


@njit(cache=True, nogil=True, error_model="numpy")
def fill_unit_gradients(
    at: Pointers, sizes: Sizes, pair: Pair, xs: Any, here: Any, norm: Any, gs: Any, zero: Any, dxs: Any
) -> None:
    """Fills a pair's dx (H, BLOCK), units from `here` on: back through last layer, ReLU and `norm`, stats and means."""
    height, outs, own, (own_stats, lanes) = sizes.height, sizes.outs, pair.gains, norm
    to_units = (at.last, pair.number * height * outs, 1, outs)
    product((dxs, 0, BLOCK), None, to_units, (gs, pair.number * outs * BLOCK, BLOCK), outs, height, BLOCK)
    for c in range(0, BLOCK, LANES):
        mean, scale = load(own_stats, c, LANES), load(own_stats, BLOCK + c, LANES)
        one, two = load(lanes, c, LANES), load(lanes, BLOCK + c, LANES)
        for h in range(height):
            place, factor = h * BLOCK + c, at.gain[own + h]
            u = (load(xs, here + place, LANES) - mean) * scale
            g = where_zero(larger(u * factor + at.shift[own + h], zero), zero, load(dxs, place, LANES))
            store(dxs, place, LANES, (g * factor - u * two - one) * scale)


@njit(cache=True, nogil=True, error_model="numpy")
def add_to_vectors(at: Pointers, sizes: Sizes, pair: Pair, of_units: Any, vs: Any, dzs: Any, dvs: Any) -> None:
    """Adds W dx of a pair's units to the gradients (F D, BLOCK) of its two vectors."""
    dim, depth, start = sizes.dim, sizes.depth, pair.number * sizes.wide * sizes.depth
    added_product((dvs, pair.i, BLOCK), (at.weight, start, 1, depth), of_units, depth, dim, BLOCK)
    added_product((dvs, pair.j, BLOCK), (at.weight, start + dim * depth, 1, depth), of_units, depth, dim, BLOCK)
    if sizes.wide > 2 * dim:
        third = (at.weight, start + 2 * dim * depth, 1, depth)
        product((dzs, 0, BLOCK), None, third, of_units, depth, dim, BLOCK)
        for n in range(0, dim * BLOCK, LANES):
            dz = load(dzs, n, LANES)
            store(dvs, pair.i + n, LANES, load(dvs, pair.i + n, LANES) + dz * load(vs, pair.j + n, LANES))
            store(dvs, pair.j + n, LANES, load(dvs, pair.j + n, LANES) + dz * load(vs, pair.i + n, LANES))


@njit(cache=True, nogil=True)
def collect(sums: Any, low: Any, high: Any, dweight: Any, dbias: Any) -> None:
    """Adds up the threads' gradients (threads, P, H, size) of pairs low..high into dweight and dbias (P, H)."""
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
