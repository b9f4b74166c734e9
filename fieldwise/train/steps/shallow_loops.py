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

from fieldwise.loops.instructions import pointer, prefetch, prefetch_second
from fieldwise.loops.lanes import LANES, load, spread, store, total
from fieldwise.optim.moves import ADAGRAD, decays, move_row, moved

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
    rows, marks = len(ids), pointer(seen)
    used[first:last] = 0
    for b in range(rows):
        if b + AHEAD < rows:
            for f in range(first, last):
                prefetch(marks, offsets[f] + ids[b + AHEAD, f])
        for f in range(first, last):
            row = offsets[f] + ids[b, f]
            mark = marks[row] - base
            if mark < 0:
                marks[row] = base + b
                slots[b, f] = -1
            elif mark < rows:
                slot = used[f]
                slot_rows[f, slot] = row
                slots[mark, f] = slots[b, f] = slot
                marks[row] = base + rows + slot
                used[f] = slot + 1
            else:
                slots[b, f] = mark - rows


@njit(cache=True, nogil=True)
def parted(slots: Any) -> Any:
    """The fields of each row (B, F) in an order (B, F), those without a slot first; and how many these are (B,).

    Without a branch, as none could be predicted: each field is written at both ends, and where it does not
    belong it is written over later.
    """
    fields, order, singles = slots.shape[1], np.empty(slots.shape, np.int16), np.empty(len(slots), np.int64)
    for b in range(len(slots)):
        first, behind = 0, fields - 1
        for f in range(fields):
            order[b, first] = order[b, behind] = f
            single = int(slots[b, f] < 0)
            first += single
            behind -= 1 - single
        singles[b] = first
    return order, singles


@njit(cache=True, nogil=True, inline="always")
def ask(table: Any, at: Any, numbers: Any) -> None:
    """Asks for the numbers at `at`, before they are needed: rows lie far apart."""
    for d in range(0, numbers, LINE):
        prefetch_second(table, at + d)


@njit(cache=True, nogil=True, inline="always")
def ask_row(b: Any, ids: Any, offsets: Any, order: Any, singles: Any, flat: Any, stride: Any, wide: Any) -> None:
    """Asks for what row b of the batch needs of the table: all weights, and the states of those that move at once."""
    for f in range(ids.shape[1]):
        ask(flat, (offsets[f] + ids[b, f]) * stride, wide)
    for k in range(singles[b]):
        ask(flat, (offsets[order[b, k]] + ids[b, order[b, k]]) * stride + wide, stride - wide)


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
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, scratch: Any,
) -> Any:  # fmt: skip
    """Rows low..high of LR: logit = bias + sum w_i, dlogit/dw_i = 1. Fields that move at once do so side by side."""
    fields, stride, to = ids.shape[1], table.shape[1], table.dtype.type
    room = (fields + LANES - 1) // LANES * LANES
    loss, slope, shrink = 0.0, 0.0, to(l2)
    flat, ticks, step, known = pointer(table), pointer(clock), clock.shape[1], len(powers)
    at, decay, own = np.zeros(fields, np.int64), pointer(powers), scratch[: 5 * room].reshape(5, room)
    w, one, two, keep1, keep2 = pointer(own[0]), pointer(own[1]), pointer(own[2]), pointer(own[3]), pointer(own[4])
    for b in range(low, high):
        if b + AHEAD < high:
            for f in range(fields):
                prefetch(flat, (offsets[f] + ids[b + AHEAD, f]) * stride)
        logit = to(bias)
        for f in range(fields):
            logit += flat[(offsets[f] + ids[b, f]) * stride]
        part, g = loss_of(float(logit), labels[b], shares[b])
        loss, slope, g_, count = loss + part, slope + g, to(g), 0
        for f in range(fields):
            slot, row = slots[b, f], offsets[f] + ids[b, f]
            if slot >= 0:
                sums[f, slot, 0] += g_
                sums[f, slot, 1] += 1
                continue
            at[count], w[count], one[count] = row * stride, flat[row * stride], flat[row * stride + 1]
            if kind != ADAGRAD:
                two[count] = flat[row * stride + 2]
            keep1[count], keep2[count] = decays(kind, to, ticks, (row + 1) * step - 1, numbers, decay, known)
            count += 1
        for c in range(0, count, LANES):
            x, first, second = load(w, c, LANES), load(one, c, LANES), load(two, c, LANES)
            kept1, kept2 = load(keep1, c, LANES), load(keep2, c, LANES)
            new = moved(kind, to, x, first, second, x * shrink + g_, kept1, kept2, numbers)
            store(w, c, LANES, new[0])
            store(one, c, LANES, new[1])
            store(two, c, LANES, new[2])
        for k in range(count):
            flat[at[k]], flat[at[k] + 1] = w[k], one[k]
            if kind != ADAGRAD:
                flat[at[k] + 2] = two[k]
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def fm_rows(
    dim: Any, linear: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, scratch: Any,
) -> Any:  # fmt: skip
    """Rows low..high of FM: logit = bias + sum w_i + (|s|^2 - sum |v_i|^2) / 2 with s = sum v_i.

    dlogit/dv_i = s - v_i, dlogit/dw_i = 1. A slot gathers in `sums` sum g s, behind it sum g for the linear weight, and
    behind these how often it occurs and sum g.
    """
    wide, fields, stride, to = dim + linear, ids.shape[1], table.shape[1], table.dtype.type
    width, size, count = sums.shape[1] * sums.shape[2], sums.shape[2], min(wide, LANES)
    loss, slope, shrink, half, at = 0.0, 0.0, to(l2), to(0.5), np.zeros(fields, np.int64)
    # Which numbers are a vector's, which the linear weight, and the one that counts.
    own = scratch[: 4 * size].reshape(4, size)
    own[:] = 0
    own[0, wide + 1], own[1, :dim], own[2, dim:wide], own[3, wide] = 1, 1, 1, 1
    s, is_vector, is_linear, counts = pointer(own[0]), pointer(own[1]), pointer(own[2]), pointer(own[3])
    gathered, decay, known = pointer(sums), pointer(powers), len(powers)
    flat, ticks, step = pointer(table), pointer(clock), clock.shape[1]
    order, singles = parted(slots)
    for b in range(low, high):
        if b + 1 < high:
            ask_row(b + 1, ids, offsets, order, singles, flat, stride, wide)
        for f in range(fields):
            at[f] = (offsets[f] + ids[b, f]) * stride
        logit = to(bias)
        for c in range(0, wide, LANES):
            first, added = min(c, wide - count), spread(to(0))
            squares = added
            for f in range(fields):
                x = load(flat, at[f] + first, count)
                added = added + x
                squares = squares + x * x
            vector, weight = load(is_vector, first, count), load(is_linear, first, count)
            store(s, first, count, vector * added + weight)
            # The last sixteen reach back into those before them, which are known already.
            logit += total(vector * half * (added * added - squares) + weight * added, c - first)
        part, g = loss_of(float(logit), labels[b], shares[b])
        loss, slope, g_ = loss + part, slope + g, to(g)
        for k in range(singles[b]):
            f = order[b, k]
            row = offsets[f] + ids[b, f]
            kept = decays(kind, to, ticks, (row + 1) * step - 1, numbers, decay, known)
            move_row(kind, to, wide, at[f], kept, s, 0, g_, is_vector, g_, shrink, flat, numbers)
        for k in range(singles[b], fields):
            f = order[b, k]
            if k + AHEAD < fields:
                later = order[b, k + AHEAD]
                ask(gathered, later * width + slots[b, later] * size, size)
            for c in range(0, size, LANES):
                place = f * width + slots[b, f] * size + c
                new = load(gathered, place, size - c) + load(s, c, size - c) * g_ + load(counts, c, size - c)
                store(gathered, place, size - c, new)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def move_alone(kind: Any, weight: Any, one: Any, two: Any, slope: Any, numbers: Any) -> None:
    """Moves one number that every row of the batch has, the bias, and its states; AdaGrad has one of them."""
    to = weight.dtype.type
    w, first, second = load(pointer(weight), 0, 1), load(pointer(one), 0, 1), load(pointer(two), 0, 1)
    new = moved(kind, to, w, first, second, spread(to(slope)), to(numbers[1]), to(numbers[2]), numbers)
    store(pointer(two), 0, 1, new[2])
    store(pointer(one), 0, 1, new[1])
    store(pointer(weight), 0, 1, new[0])


@njit(cache=True, nogil=True, error_model="numpy")
def repeated(
    dim: Any, linear: Any, kind: Any, first: Any, last: Any, slot_rows: Any, used: Any, minus: Any, l2: Any, table: Any,
    clock: Any, numbers: Any, powers: Any, sums: Any, scratch: Any,
) -> None:  # fmt: skip
    """Moves the rows of the slots of fields first..last, and empties the slots: those of each thread (T, F, ...).

    The gradient is what `sums` holds; an FM's, with minus = 1, is sum g s - v sum g. Behind it is how often the row
    occurs, and an FM's sum g.
    """
    wide, stride, to, zero = dim + linear, table.shape[1], table.dtype.type, spread(table.dtype.type(0))
    threads, slots, size = len(sums), sums.shape[2], sums.shape[3]
    own = scratch[: 2 * size].reshape(2, size)
    own[:] = 0
    own[0, :dim] = minus
    is_vector, grad, gathered, decay, known = (
        pointer(own[0]),
        pointer(own[1]),
        pointer(sums),
        pointer(powers),
        len(powers),
    )
    flat, ticks, step = pointer(table), pointer(clock), clock.shape[1]
    for f in range(first, last):
        for k in range(used[f]):
            row = slot_rows[f, k]
            if k + AHEAD < used[f]:
                ask(flat, slot_rows[f, k + AHEAD] * stride, stride)
            for c in range(0, size, LANES):
                summed = zero
                for t in range(threads):
                    place = ((t * sums.shape[1] + f) * slots + k) * size + c
                    summed = summed + load(gathered, place, size - c)
                    store(gathered, place, size - c, zero)
                store(grad, c, size - c, summed)
            often, g = grad[wide], grad[wide + 1]
            kept = decays(kind, to, ticks, (row + 1) * step - 1, numbers, decay, known)
            move_row(kind, to, wide, row * stride, kept, grad, 0, to(1), is_vector, g, to(l2) * often, flat, numbers)
