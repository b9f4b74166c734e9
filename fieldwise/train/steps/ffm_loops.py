"""The rows of a training step of FFM (CPU, numba); what goes before and after them is in shallow.py.

    logit = bias + sum w_i + scale sum_{i<j} <v_i for j, v_j for i>,   dlogit/dv_i's part for j = scale v_j's part for i

A vector v_i has F - 1 parts, one for each other field. The parts of all vectors that meet, O_i = (v_j's part for i, all
j but i), are the gradients but for a factor, and half the sum of v_i O_i is the sum over pairs: `own` (F, room) gets
them, in the order of v_i's.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fieldwise.loops.instructions import keep, pointer
from fieldwise.loops.lanes import (
    LANES,
    load,
    spread,
    store,
    total,
    turned,
    without_first,
    without_second,
    without_third,
)
from fieldwise.optim.moves import Gradient, Lanes, Pointer, decays, move_row
from fieldwise.train.steps.shallow_loops import Floats, Rows, Table, Update, ask, ask_row, loss_of, parted

FOUR = 4


@njit(cache=True, nogil=True, error_model="numpy")
def ffm_rows(
    batch: Rows, low: int, high: int, table: Table, update: Update, bias: float, scale: float, sums: Floats,
    scratch: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Rows low..high of FFM; returns as `lr_rows`. Behind a field's O_i is 1 / scale for the linear weight.

    A slot gathers sum g scale O_i in `sums`, and behind them how often it occurs.
    """
    ids, offsets, slots, labels, shares = batch
    kind, numbers = update.kind, update.numbers
    dim, linear, fields, to = table.dim, table.linear, ids.shape[1], table.numbers.dtype.type
    flat, stride, gathered = pointer(table.numbers), table.numbers.shape[1], pointer(sums)
    clock, ticks, powers, known = pointer(table.clock), table.clock.shape[1], pointer(update.powers), len(update.powers)
    wide, length, width, size = dim + linear, dim // (fields - 1), sums.shape[1] * sums.shape[2], sums.shape[2]
    # Fields come in fours, and each has one part more than it needs, for itself.
    rows, room = (fields + 3) // 4 * 4, ((fields + 3) // 4 * 4 * length + LANES - 1) // LANES * LANES
    loss, slope, shrink, full = 0.0, 0.0, to(update.l2), wide // LANES * LANES
    at, zeros, zero = np.zeros(fields, np.int64), np.zeros(room + LANES, table.numbers.dtype), spread(to(0))
    scratch[:] = 0
    own, nothing = pointer(scratch), pointer(zeros)
    order, singles = parted(slots)
    for b in range(low, high):
        if b + 1 < high:
            ask_row(b + 1, ids, offsets, order, singles, flat, stride, wide)
            for k in range(singles[b + 1], fields):
                f = order[b + 1, k]
                ask(gathered, f * width + slots[b + 1, f] * size, size)
        logit = to(bias)
        for f in range(fields):
            at[f] = (offsets[f] + ids[b, f]) * stride
            if linear:
                logit += flat[at[f] + dim]
        if length == FOUR:
            apart(flat, at, fields, dim, own, room, zero)
            products = crossed(own, rows, room, zero)
        else:
            products = exchanged(flat, at, fields, length, own, room, zero)
        if linear:
            for f in range(fields):
                own[f * room + dim] = to(1 / scale)
        part, g = loss_of(float(logit + to(scale / 2) * total(products, 0)), labels[b], shares[b])
        loss, slope, slope_ = loss + part, slope + g, to(g * scale)
        for k in range(singles[b]):
            f = order[b, k]
            row = offsets[f] + ids[b, f]
            kept = decays(kind, to, clock, (row + 1) * ticks - 1, numbers, powers, known)
            along = Gradient(own, f * room, slope_, nothing, to(0), shrink)
            move_row(kind, to, wide, flat, at[f], kept, along, numbers)
        for k in range(singles[b], fields):
            f = order[b, k]
            start = f * width + slots[b, f] * size
            for c in range(0, full, LANES):
                more = load(own, f * room + c, LANES) * slope_
                store(gathered, start + c, LANES, load(gathered, start + c, LANES) + more)
            rest = load(own, f * room + full, wide - full) * slope_
            store(gathered, start + full, wide - full, load(gathered, start + full, wide - full) + rest)
            gathered[start + wide] += 1
    keep((zeros,))
    return loss, slope


@njit(cache=True, nogil=True, inline="always")
def exchanged(
    flat: Pointer, at: NDArray[np.int64], fields: int, length: int, own: Pointer, room: int, zero: Lanes
) -> Lanes:
    """O_i of all fields, part by part, and sixteen numbers whose sum is that of all v_i O_i."""
    products, dim = zero, length * (fields - 1)
    for i in range(fields):
        # v_i's parts for the fields before it, which hold it as number i - 1, then for those behind, as number i.
        for j in range(fields - 1):
            source = at[i] + j * length
            target = j * room + (i - 1) * length if j < i else (j + 1) * room + i * length
            for d in range(length):
                own[target + d] = flat[source + d]
    for f in range(fields):
        for c in range(0, dim, LANES):
            products = products + load(flat, at[f] + c, dim - c) * load(own, f * room + c, LANES)
    return products


@njit(cache=True, nogil=True, inline="always")
def apart(flat: Pointer, at: NDArray[np.int64], fields: int, dim: int, own: Pointer, room: int, zero: Lanes) -> None:
    """The vectors, with parts of four numbers, in `own`; field f's has a part of zeros for f itself, and one behind."""
    for f in range(fields):
        for c in range(0, FOUR * f, LANES):
            store(own, f * room + c, LANES, load(flat, at[f] + c, LANES))
        # The last sixteen may reach into the next field's place, which comes after.
        for c in range(FOUR * f, dim, LANES):
            store(own, f * room + FOUR + c, LANES, load(flat, at[f] + c, LANES))
        store(own, f * room + FOUR * f, FOUR, zero)
        store(own, f * room + FOUR + dim, room - FOUR - dim, zero)
    store(own, fields * room, LANES, zero)


@njit(cache=True, nogil=True, inline="always")
def crossed(own: Pointer, rows: int, room: int, zero: Lanes) -> Lanes:
    """Turns the square of parts in `own` on its diagonal, in place, and leaves each field's own part out.

    Four by four parts at a time are sixteen numbers by four, and change places with those across. What comes behind the
    diagonal moves up by one part. Gives sixteen numbers whose sum is that of all v_i O_i.
    """
    once, twice = zero, zero
    for s in range(0, rows, 4):
        here = s * (room + FOUR)
        a, b, c, d = four(own, here, room)
        w, x, y, z = turned(a, b, c, d)
        once = once + a * w + b * x + c * y + d * z
        put(own, here, room, without_first(w, w), without_second(x, x), without_third(y, y), z)
        for t in range(s + 4, rows, 4):
            over, under = s * room + t * FOUR, t * room + s * FOUR
            a, b, c, d = four(own, over, room)
            e, f, g, h = four(own, under, room)
            w, x, y, z = turned(a, b, c, d)
            put(own, under, room, w, x, y, z)
            w, x, y, z = turned(e, f, g, h)
            twice = twice + a * w + b * x + c * y + d * z
            put(own, over - FOUR, room, w, x, y, z)
    return once + twice + twice


@njit(cache=True, nogil=True, inline="always")
def four(own: Pointer, at: int, room: int) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    one, two = load(own, at, LANES), load(own, at + room, LANES)
    return one, two, load(own, at + 2 * room, LANES), load(own, at + 3 * room, LANES)


@njit(cache=True, nogil=True, inline="always")
def put(own: Pointer, at: int, room: int, one: Lanes, two: Lanes, three: Lanes, last: Lanes) -> None:
    store(own, at, LANES, one)
    store(own, at + room, LANES, two)
    store(own, at + 2 * room, LANES, three)
    store(own, at + 3 * room, LANES, last)
