"""A whole training step of LR, FM and FFM in three loops over a batch (CPU, numba).

    group     which rows of the table occur once in the batch, and which more often: those get a slot
    ..._rows  row by row: logit, loss and its derivative g; a table row that occurs once moves at once, for no other row
              of the batch looks at it; the others' gradients are added up in their slots
    repeated  the rows of the slots move, once each

So every gradient is taken at the weights before the batch, and every row moves once, by its summed gradient. The plain
version is `steps.Step` on the same model. Sums over repeated rows are taken in the order of the batch, in one part for
each thread: the result is the same for the same number of threads.

All that belongs to a category lies side by side in `table` (N, stride), so that memory is asked once for it: its `wide`
numbers (a vector, and the linear weight behind it), then each of the optimiser's states of them, and last, as a whole
number in `clock` (N, ...), the same memory, the step that moved it last.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fieldwise.kernels.lanes import LANES, load, spread, store, total
from fieldwise.kernels.moves import ADAGRAD, decays, move_row, moved
from fieldwise.kernels.prefetch import prefetch

LINE = 16  # float32 numbers of a cache line
AHEAD = 4  # rows whose marks are asked for in advance


@njit(cache=True, nogil=True)
def group(
    ids: Any, offsets: Any, first: Any, last: Any, base: Any, seen: Any, slots: Any, slot_rows: Any, used: Any
) -> None:
    """Fields first..last: the slot of each place (B, F), -1 where its row occurs once; slot_rows (F, ...), their rows.

    A row's mark in `seen` (N,) is base + b if only row b of the batch has it so far, base + B + its slot if several do,
    and less than base if none does: marks of other batches need not be wiped out.
    """
    rows = len(ids)
    used[first:last] = 0
    for b in range(rows):
        if b + AHEAD < rows:
            for f in range(first, last):
                prefetch(seen, offsets[f] + ids[b + AHEAD, f])
        for f in range(first, last):
            row = offsets[f] + ids[b, f]
            mark = seen[row] - base
            if mark < 0:
                seen[row] = base + b
                slots[b, f] = -1
            elif mark < rows:
                slot = used[f]
                slot_rows[f, slot] = row
                slots[mark, f] = slots[b, f] = slot
                seen[row] = base + rows + slot
                used[f] = slot + 1
            else:
                slots[b, f] = mark - rows


@njit(cache=True, nogil=True, inline="always")
def ask(table: Any, at: Any, numbers: Any) -> None:
    """Asks for the numbers at `at`, before they are needed: rows lie far apart."""
    for d in range(0, numbers, LINE):
        prefetch(table, at + d)


@njit(cache=True, nogil=True, inline="always")
def loss_of(logit: Any, label: Any, share: Any) -> Any:
    """A row's share of the mean log loss, and its derivative by the logit."""
    small = math.exp(-abs(logit))
    loss = max(logit, 0.0) - logit * label + math.log1p(small)
    probability = 1 / (1 + small) if logit >= 0 else small / (1 + small)
    return share * loss, share * (probability - label)


@njit(cache=True, nogil=True, error_model="numpy")
def lr_rows(
    dim: Any, linear: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of LR: logit = bias + sum w_i, dlogit/dw_i = 1. The fields that move at once do so side by side."""
    fields, stride, to = ids.shape[1], table.shape[1], table.dtype.type
    room = (fields + LANES - 1) // LANES * LANES
    flat, loss, slope, shrink = table.reshape(-1), 0.0, 0.0, to(l2)
    at, w, one, two = np.zeros(room, np.int64), np.zeros(room, to), np.zeros(room, to), np.zeros(room, to)
    keep1, keep2 = np.ones(room, to), np.ones(room, to)
    for b in range(low, high):
        if b + AHEAD < high:
            for f in range(fields):
                prefetch(table, (offsets[f] + ids[b + AHEAD, f]) * stride)
        logit = to(bias)
        for f in range(fields):
            logit += table[offsets[f] + ids[b, f], 0]
        part, g = loss_of(float(logit), labels[b], shares[b])
        loss, slope, g_, count = loss + part, slope + g, to(g), 0
        for f in range(fields):
            slot, row = slots[b, f], offsets[f] + ids[b, f]
            if slot >= 0:
                sums[f, slot, 0] += g_
                totals[f, slot, 1] += 1
                continue
            at[count], w[count], one[count] = row * stride, flat[row * stride], flat[row * stride + 1]
            if kind != ADAGRAD:
                two[count] = flat[row * stride + 2]
            keep1[count], keep2[count] = decays(kind, row, table, clock, numbers, powers)
            count += 1
        for c in range(0, count, LANES):
            own, first, second = load(w, c, LANES), load(one, c, LANES), load(two, c, LANES)
            kept1, kept2 = load(keep1, c, LANES), load(keep2, c, LANES)
            own, first, second = moved(kind, to, own, first, second, own * shrink + g_, kept1, kept2, numbers)
            store(w, c, LANES, own)
            store(one, c, LANES, first)
            store(two, c, LANES, second)
        for k in range(count):
            flat[at[k]], flat[at[k] + 1] = w[k], one[k]
            if kind != ADAGRAD:
                flat[at[k] + 2] = two[k]
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def fm_rows(
    dim: Any, linear: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of FM: logit = bias + sum w_i + (|s|^2 - sum |v_i|^2) / 2 with s = sum v_i.

    dlogit/dv_i = s - v_i, dlogit/dw_i = 1. A slot gathers in `sums` sum g s, and sum g behind it for the linear weight,
    in `totals` sum g and how often it occurs.
    """
    wide, fields, stride, to = dim + linear, ids.shape[1], table.shape[1], table.dtype.type
    width, size, count = sums.shape[1] * sums.shape[2], sums.shape[2], min(wide, LANES)
    loss, slope, shrink, half = 0.0, 0.0, to(l2), to(0.5)
    s, at = np.zeros(wide, to), np.zeros(fields, np.int64)
    # Which numbers are a vector's, and which the linear weight.
    is_vector, is_linear = np.zeros(wide, to), np.zeros(wide, to)
    is_vector[:dim], is_linear[dim:wide] = 1, 1
    once = np.ones(2 * LANES, to)
    once[:LANES] = 0
    for b in range(low, high):
        if b + 1 < high:
            for f in range(fields):
                ask(table, (offsets[f] + ids[b + 1, f]) * stride, stride if slots[b + 1, f] < 0 else wide)
        for f in range(fields):
            at[f] = (offsets[f] + ids[b, f]) * stride
        logit = to(bias)
        for c in range(0, wide, LANES):
            first, added = min(c, wide - count), spread(to(0))
            squares = added
            for f in range(fields):
                x = load(table, at[f] + first, count)
                added = added + x
                squares = squares + x * x
            vector, weight = load(is_vector, first, count), load(is_linear, first, count)
            store(s, first, count, vector * added + weight)
            # The last sixteen reach back into those before them, which count once.
            new = load(once, LANES - (c - first), LANES)
            logit += total(new * (vector * half * (added * added - squares) + weight * added))
        part, g = loss_of(float(logit), labels[b], shares[b])
        loss, slope, g_ = loss + part, slope + g, to(g)
        for f in range(fields):
            slot = slots[b, f]
            if slot >= 0:
                totals[f, slot, 0] += g_
                totals[f, slot, 1] += 1
                for c in range(0, wide, LANES):
                    place = f * width + slot * size + c
                    store(sums, place, wide - c, load(sums, place, wide - c) + load(s, c, wide - c) * g_)
                continue
            kept = decays(kind, offsets[f] + ids[b, f], table, clock, numbers, powers)
            move_row(kind, wide, at[f], kept, s, 0, g_, is_vector, g_, shrink, table, numbers)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def ffm_rows(
    dim: Any, linear: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of FFM: logit = bias + sum w_i + scale sum_{i<j} <v_i for j, v_j for i>.

    dlogit/dv_i's part for j = scale v_j's part for i: `other` (F, ...) holds these parts, in the order of v_i's, so that
    the sum over pairs is half that of v_i * other_i. Behind them is 1 / scale for the linear weight. A slot gathers
    sum g scale other_i in `sums`, and in `totals` how often it occurs.
    """
    wide, fields, stride, to = dim + linear, ids.shape[1], table.shape[1], table.dtype.type
    width, size, room = sums.shape[1] * sums.shape[2], sums.shape[2], (wide + LANES - 1) // LANES * LANES
    length = dim // (fields - 1)
    loss, slope, shrink = 0.0, 0.0, to(l2)
    other, at = np.zeros((fields, room), to), np.zeros(fields, np.int64)
    other[:, dim:wide] = 1 / scale
    nothing = np.zeros(wide, to)
    for b in range(low, high):
        if b + 1 < high:
            for f in range(fields):
                ask(table, (offsets[f] + ids[b + 1, f]) * stride, stride if slots[b + 1, f] < 0 else wide)
        logit, products = to(bias), spread(to(0))
        for f in range(fields):
            at[f] = (offsets[f] + ids[b, f]) * stride
            if linear:
                logit += table[offsets[f] + ids[b, f], dim]
        for i in range(fields):
            for j in range(fields - 1):
                # Part j of v_i is for field j, or j + 1 behind its own place; there v_i is number i - 1, or i.
                to_field, place = (j, i - 1) if j < i else (j + 1, i)
                for d in range(0, length, LANES):
                    part = load(table, at[i] + j * length + d, length - d)
                    store(other, to_field * room + place * length + d, length - d, part)
        for f in range(fields):
            for c in range(0, dim, LANES):
                products = products + load(table, at[f] + c, dim - c) * load(other, f * room + c, LANES)
        part, g = loss_of(float(logit + to(scale / 2) * total(products)), labels[b], shares[b])
        loss, slope, slope_ = loss + part, slope + g, to(g * scale)
        for f in range(fields):
            slot = slots[b, f]
            if slot >= 0:
                totals[f, slot, 1] += 1
                for c in range(0, wide, LANES):
                    place = f * width + slot * size + c
                    more = load(other, f * room + c, LANES) * slope_
                    store(sums, place, wide - c, load(sums, place, wide - c) + more)
                continue
            kept = decays(kind, offsets[f] + ids[b, f], table, clock, numbers, powers)
            move_row(kind, wide, at[f], kept, other, f * room, slope_, nothing, to(0), shrink, table, numbers)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def repeated(
    dim: Any, linear: Any, kind: Any, first: Any, last: Any, slot_rows: Any, used: Any, minus: Any, l2: Any, table: Any,
    clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> None:  # fmt: skip
    """Moves the rows of the slots of fields first..last, and empties the slots: those of each thread (T, F, ...).

    The gradient is what `sums` holds; an FM's, with minus = 1, is sum g s - v sum g.
    """
    wide, stride, to, zero = dim + linear, table.shape[1], table.dtype.type, spread(table.dtype.type(0))
    threads, is_vector, grad = len(sums), np.zeros(wide, to), np.zeros(wide, to)
    is_vector[:dim] = minus
    for f in range(first, last):
        for k in range(used[f]):
            row, g, often = slot_rows[f, k], to(0), to(0)
            if k + AHEAD < used[f]:
                ask(table, slot_rows[f, k + AHEAD] * stride, stride)
            for t in range(threads):
                g += totals[t, f, k, 0]
                often += totals[t, f, k, 1]
                totals[t, f, k, 0] = totals[t, f, k, 1] = 0
            for c in range(0, wide, LANES):
                summed = zero
                for t in range(threads):
                    place = ((t * sums.shape[1] + f) * sums.shape[2] + k) * sums.shape[3] + c
                    summed = summed + load(sums, place, wide - c)
                    store(sums, place, wide - c, zero)
                store(grad, c, wide - c, summed)
            kept = decays(kind, row, table, clock, numbers, powers)
            move_row(kind, wide, row * stride, kept, grad, 0, to(1), is_vector, g, to(l2) * often, table, numbers)
