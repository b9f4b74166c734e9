"""A whole training step of LR, FM and FFM in three loops over a batch (CPU, numba).

    group     finds the rows of the table that occur once in the batch, and gives those that occur more often a slot
    ..._rows  row by row: logit, loss and its derivative g; a table row that occurs once moves at once, for no other row
              of the batch reads it; the gradients of the others are added up in their slots
    repeated  moves the rows of the slots, once each

So every gradient is taken at the weights before the batch, and every row moves once, by its summed gradient. The plain
version is `steps.Step` on the same model. Each thread sums over repeated rows in the order of the batch, and the
threads' sums are added in order: the result is the same for the same number of threads.

All numbers of a category lie side by side in a row of the table, so that memory is asked once for them: its `wide`
weights (a vector, and the linear weight behind it), then each of the optimiser's states of them, and last the step that
moved it last, as an integer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fieldwise.loops.instructions import pointer, prefetch, prefetch_second
from fieldwise.loops.lanes import LANES, load, spread, store, total
from fieldwise.optim.moves import ADAGRAD, Cast, Gradient, Lanes, Number, Numbers, Pointer, decays, move_row, moved

LINE = 16  # float32 numbers of a cache line
AHEAD = 4  # rows whose marks are asked for in advance
# Pointers that are written through are local names of a loop: numba drops a write through one that lies in a tuple.

Floats = NDArray[np.floating[Any]]


class Rows(NamedTuple):
    """A batch of B rows over F fields."""

    ids: NDArray[np.int32]  # (B, F)
    offsets: NDArray[np.int64]  # (F,) where each field begins in the table
    slots: NDArray[np.int32]  # (B, F) the slot of each place, -1 where its row of the table occurs once
    labels: Floats  # (B,)
    shares: NDArray[np.float64]  # (B,) what each row's loss counts in the loss of the batch


class Slots(NamedTuple):
    """Which rows of the table have a slot, field by field."""

    rows: NDArray[np.int64]  # (F, slots) the row of each slot
    used: NDArray[np.int64]  # (F,) how many slots are taken


class Table(NamedTuple):
    """The rows of all categories with their states; `clock` is the same memory as integers."""

    dim: int  # of a vector
    linear: int  # 1 with a linear weight, else 0
    numbers: Floats  # (N, stride)
    clock: NDArray[np.int32]  # (N, ...) the last column is the step that moved the row last


class Update(NamedTuple):
    """How rows move in this step."""

    kind: int  # one of those of moves.py
    numbers: Numbers
    powers: NDArray[np.float64]  # of Adam's betas
    l2: float  # what the weights are multiplied with in the gradient of a row


@njit(cache=True, nogil=True)
def group(
    ids: NDArray[np.int32], offsets: NDArray[np.int64], first: int, last: int, base: int, seen: NDArray[np.int32],
    places: NDArray[np.int32], slots: Slots,
) -> None:  # fmt: skip
    """Writes the slots of fields first..last: `places` (B, F) as `Rows.slots`, and `slots`.

    A row's mark in `seen` (N,) is base + b if only row b of the batch has it so far, base + B + its slot if several do,
    and less than base if none does: marks of other batches need not be wiped out.
    """
    rows, marks = len(ids), pointer(seen)
    slot_rows, used = slots
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
                places[b, f] = -1
            elif mark < rows:
                slot = used[f]
                slot_rows[f, slot] = row
                places[mark, f] = places[b, f] = slot
                marks[row] = base + rows + slot
                used[f] = slot + 1
            else:
                places[b, f] = mark - rows


@njit(cache=True, nogil=True)
def parted(slots: NDArray[np.int32]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """The fields of each row in an order (B, F), those without a slot first; and how many these are (B,).

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
def ask(table: Pointer, at: int, numbers: int) -> None:
    """Prefetches the numbers at `at`: rows lie far apart."""
    for d in range(0, numbers, LINE):
        prefetch_second(table, at + d)


@njit(cache=True, nogil=True, inline="always")
def ask_row(
    b: int, ids: NDArray[np.int32], offsets: NDArray[np.int64], order: NDArray[np.int16], singles: NDArray[np.int64],
    flat: Pointer, stride: int, wide: int,
) -> None:  # fmt: skip
    """Prefetches what row b of the batch needs of the table: all weights, and the states of those that move at once."""
    for f in range(ids.shape[1]):
        ask(flat, (offsets[f] + ids[b, f]) * stride, wide)
    for k in range(singles[b]):
        row = offsets[order[b, k]] + ids[b, order[b, k]]
        ask(flat, row * stride + wide, stride - wide)


@njit(cache=True, nogil=True, inline="always")
def loss_of(logit: float, label: float, share: float) -> tuple[float, float]:
    """A row's share of the mean log loss, and its derivative by the logit."""
    small = math.exp(-abs(logit))
    loss = max(logit, 0.0) - logit * label + math.log1p(small)
    probability = 1 / (1 + small) if logit >= 0 else small / (1 + small)
    return share * loss, share * (probability - label)


@njit(cache=True, nogil=True, error_model="numpy")
def lr_rows(
    rows: Rows, low: int, high: int, table: Table, update: Update, bias: float, scale: float, sums: Floats,
    scratch: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Rows low..high of LR: logit = bias + sum w_i, dlogit/dw_i = 1. Fields that move at once do so side by side.

    Returns the loss of these rows, and its derivative by the bias; `sums` (F, slots, size) are of this thread.
    """
    ids, offsets, slots, labels, shares = rows
    kind, numbers = update.kind, update.numbers
    fields, to, flat, stride = ids.shape[1], table.numbers.dtype.type, pointer(table.numbers), table.numbers.shape[1]
    clock, ticks, powers, known = pointer(table.clock), table.clock.shape[1], pointer(update.powers), len(update.powers)
    loss, slope, shrink = 0.0, 0.0, to(update.l2)
    room = (fields + LANES - 1) // LANES * LANES
    at, own = np.zeros(fields, np.int64), scratch[: 5 * room].reshape(5, room)
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
        # Weights and states of what moves at once are collected, so that sixteen of them move together.
        for f in range(fields):
            slot, row = slots[b, f], offsets[f] + ids[b, f]
            if slot >= 0:
                sums[f, slot, 0] += g_
                sums[f, slot, 1] += 1
                continue
            at[count], w[count], one[count] = row * stride, flat[row * stride], flat[row * stride + 1]
            if kind != ADAGRAD:
                two[count] = flat[row * stride + 2]
            keep1[count], keep2[count] = decays(kind, to, clock, (row + 1) * ticks - 1, numbers, powers, known)
            count += 1
        for c in range(0, count, LANES):
            x, first, second = load(w, c, LANES), load(one, c, LANES), load(two, c, LANES)
            kept = load(keep1, c, LANES), load(keep2, c, LANES)
            new = moved(kind, to, x, first, second, x * shrink + g_, kept, numbers)
            store(w, c, LANES, new[0])
            store(one, c, LANES, new[1])
            store(two, c, LANES, new[2])
        for k in range(count):
            flat[at[k]], flat[at[k] + 1] = w[k], one[k]
            if kind != ADAGRAD:
                flat[at[k] + 2] = two[k]
    return loss, slope


@njit(cache=True, nogil=True, inline="always")
def fm_logit(
    bias: Number, flat: Pointer, at: NDArray[np.int64], wide: int, to: Cast, s: Pointer, is_vector: Pointer,
    is_linear: Pointer,
) -> Number:  # fmt: skip
    """The logit of the table's rows at `at`; writes s = sum v_i, and 1 behind it for the linear weight."""
    logit, count, half = bias, min(wide, LANES), to(0.5)
    for c in range(0, wide, LANES):
        first, added = min(c, wide - count), spread(to(0))
        squares = added
        for f in range(len(at)):
            x = load(flat, at[f] + first, count)
            added = added + x
            squares = squares + x * x
        vector, weight = load(is_vector, first, count), load(is_linear, first, count)
        store(s, first, count, vector * added + weight)
        # The last sixteen reach back into those before them, which are known already.
        logit += total(vector * half * (added * added - squares) + weight * added, c - first)
    return logit


@njit(cache=True, nogil=True, error_model="numpy")
def fm_rows(
    rows: Rows, low: int, high: int, table: Table, update: Update, bias: float, scale: float, sums: Floats,
    scratch: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Rows low..high of FM: logit = bias + sum w_i + (|s|^2 - sum |v_i|^2) / 2 with s = sum v_i; returns as `lr_rows`.

    dlogit/dv_i = s - v_i, dlogit/dw_i = 1. A slot gathers in `sums` sum g s, behind it sum g for the linear weight, and
    behind these how often it occurs and sum g.
    """
    ids, offsets, slots, labels, shares = rows
    kind, numbers = update.kind, update.numbers
    dim, wide, fields, to = table.dim, table.dim + table.linear, ids.shape[1], table.numbers.dtype.type
    flat, stride, gathered = pointer(table.numbers), table.numbers.shape[1], pointer(sums)
    clock, ticks, powers, known = pointer(table.clock), table.clock.shape[1], pointer(update.powers), len(update.powers)
    width, size = sums.shape[1] * sums.shape[2], sums.shape[2]
    loss, slope, shrink, at = 0.0, 0.0, to(update.l2), np.zeros(fields, np.int64)
    # Masks: which numbers are a vector's, which is the linear weight, and the one that counts.
    own = scratch[: 4 * size].reshape(4, size)
    own[:] = 0
    own[0, wide + 1], own[1, :dim], own[2, dim:wide], own[3, wide] = 1, 1, 1, 1
    s, is_vector, is_linear, counts = pointer(own[0]), pointer(own[1]), pointer(own[2]), pointer(own[3])
    order, singles = parted(slots)
    for b in range(low, high):
        if b + 1 < high:
            ask_row(b + 1, ids, offsets, order, singles, flat, stride, wide)
        for f in range(fields):
            at[f] = (offsets[f] + ids[b, f]) * stride
        logit = fm_logit(to(bias), flat, at, wide, to, s, is_vector, is_linear)
        part, g = loss_of(float(logit), labels[b], shares[b])
        loss, slope, g_ = loss + part, slope + g, to(g)
        for k in range(singles[b]):
            f = order[b, k]
            row = offsets[f] + ids[b, f]
            kept = decays(kind, to, clock, (row + 1) * ticks - 1, numbers, powers, known)
            move_row(kind, to, wide, flat, at[f], kept, Gradient(s, 0, g_, is_vector, g_, shrink), numbers)
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
def move_alone(kind: int, weight: Floats, one: Floats, two: Floats, slope: float, numbers: Numbers) -> None:
    """Moves one number that every row of the batch has, the bias, and its states; AdaGrad has one of them."""
    to = weight.dtype.type
    w, first, second = load(pointer(weight), 0, 1), load(pointer(one), 0, 1), load(pointer(two), 0, 1)
    kept = to(numbers.one), to(numbers.two)
    new = moved(kind, to, w, first, second, spread(to(slope)), kept, numbers)
    store(pointer(two), 0, 1, new[2])
    store(pointer(one), 0, 1, new[1])
    store(pointer(weight), 0, 1, new[0])


@njit(cache=True, nogil=True, inline="always")
def emptied(gathered: Pointer, start: int, apart: int, threads: int, size: int, grad: Pointer, zero: Lanes) -> None:
    """grad = the sum of all threads' numbers of a slot, which lie `apart` from each other; the slot becomes zero."""
    for c in range(0, size, LANES):
        summed = zero
        for t in range(threads):
            place = start + t * apart + c
            summed = summed + load(gathered, place, size - c)
            store(gathered, place, size - c, zero)
        store(grad, c, size - c, summed)


@njit(cache=True, nogil=True, error_model="numpy")
def repeated(
    first: int, last: int, slots: Slots, minus: float, table: Table, update: Update, sums: Floats, scratch: Floats
) -> None:
    """Moves the rows of the slots of fields first..last, and empties the slots: those of each thread (T, F, ...).

    The gradient is what `sums` holds; an FM's, with minus = 1, is sum g s - v sum g. Behind it is how often the row
    occurs, and an FM's sum g.
    """
    kind, numbers, flat, stride = update.kind, update.numbers, pointer(table.numbers), table.numbers.shape[1]
    clock, ticks, powers, known = pointer(table.clock), table.clock.shape[1], pointer(update.powers), len(update.powers)
    wide, to, zero = table.dim + table.linear, table.numbers.dtype.type, spread(table.numbers.dtype.type(0))
    threads, fields, room, size = sums.shape
    own = scratch[: 2 * size].reshape(2, size)
    own[:] = 0
    own[0, : table.dim] = minus
    is_vector, grad, gathered = pointer(own[0]), pointer(own[1]), pointer(sums)
    rows, used = slots
    for f in range(first, last):
        for k in range(used[f]):
            row = rows[f, k]
            if k + AHEAD < used[f]:
                ask(flat, rows[f, k + AHEAD] * stride, stride)
            emptied(gathered, (f * room + k) * size, fields * room * size, threads, size, grad, zero)
            often, g = grad[wide], grad[wide + 1]
            kept = decays(kind, to, clock, (row + 1) * ticks - 1, numbers, powers, known)
            along = Gradient(grad, 0, to(1), is_vector, g, to(update.l2) * often)
            move_row(kind, to, wide, flat, row * stride, kept, along, numbers)
