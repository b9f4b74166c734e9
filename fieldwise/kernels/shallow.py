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

from fieldwise.kernels.prefetch import prefetch

ADAM, LAZY_ADAM, ADAGRAD, FTRL = 0, 1, 2, 3
LINE = 16  # float32 numbers of a cache line
# Sums may be taken in any order and products fused with them; what is not a number stays so.
FAST = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True)
def group(ids: Any, offsets: Any, first: Any, last: Any, seen: Any, slots: Any, slot_rows: Any, used: Any) -> None:
    """Fields first..last: the slot of each place (B, F), -1 where its row occurs once; slot_rows (F, ...), their rows.

    `seen` (N,) is zero before and after.
    """
    for f in range(first, last):
        offset = offsets[f]
        for b in range(len(ids)):
            seen[offset + ids[b, f]] += 1
        count = 0
        for b in range(len(ids)):
            row = offset + ids[b, f]
            state = seen[row]
            if state == 1:
                seen[row] = 0
                slots[b, f] = -1
                continue
            if state > 1:
                slot_rows[f, count] = row
                count += 1
                state = -count
                seen[row] = state
            slots[b, f] = -state - 1
        for k in range(count):
            seen[slot_rows[f, k]] = 0
        used[f] = count


@njit(cache=True, nogil=True, inline="always", error_model="numpy", fastmath=FAST)
def move(kind: Any, wide: Any, row: Any, table: Any, clock: Any, grad: Any, at: Any, numbers: Any, powers: Any) -> None:
    """One step of one row along grad[at] (wide,): the formulas of optim/adam.py, adagrad.py and ftrl.py.

    Numbers without a sign tell the compiler that no index counts from the end.
    """
    to, one, two = table.dtype.type, wide, wide + wide
    if kind <= LAZY_ADAM:
        keep1, keep2 = to(numbers[1]), to(numbers[2])
        if kind == ADAM:
            step, place = int(numbers[0]), clock.shape[1] - 1
            gap = step - clock[row, place]
            clock[row, place] = step
            if gap < len(powers):
                keep1, keep2 = to(powers[gap, 0]), to(powers[gap, 1])
            else:
                keep1, keep2 = to(numbers[1] ** gap), to(numbers[2] ** gap)
        new1, new2, rate, eps = to(1 - numbers[1]), to(1 - numbers[2]), to(numbers[3]), to(numbers[4])
        for d in range(wide):
            g = grad[at, d]
            mean = table[row, one + d] * keep1 + new1 * g
            square = table[row, two + d] * keep2 + new2 * g * g
            table[row, one + d] = mean
            table[row, two + d] = square
            table[row, d] -= rate * mean / (math.sqrt(square) + eps)
    elif kind == ADAGRAD:
        initial, rate, eps = to(numbers[1]), to(numbers[3]), to(numbers[4])
        for d in range(wide):
            g = grad[at, d]
            total = table[row, one + d] + g * g
            table[row, one + d] = total
            table[row, d] -= rate * g / (math.sqrt(total + initial) + eps)
    else:
        l1, l2, faster, beta = to(numbers[1]), to(numbers[2]), to(1 / numbers[3]), to(numbers[4])
        for d in range(wide):
            w, z, n, g = table[row, d], table[row, one + d], table[row, two + d], grad[at, d]
            if n == 0:
                z = -w * (beta * faster + l2) - l1 * (to(w > 0) - to(w < 0))
            more = n + g * g
            root = math.sqrt(more)
            z += g - (root - math.sqrt(n)) * faster * w
            table[row, one + d] = z
            table[row, two + d] = more
            new = (max(-l1, min(z, l1)) - z) / ((root + beta) * faster + l2)
            table[row, d] = w if more == 0 else new


@njit(cache=True, nogil=True, inline="always")
def ask(table: Any, row: Any, numbers: Any) -> None:
    """Asks for a row's first numbers, before they are needed: rows lie far apart."""
    for d in range(0, numbers, LINE):
        prefetch(table, row * table.shape[1] + d)


@njit(cache=True, nogil=True, inline="always")
def loss_of(logit: Any, label: Any, share: Any) -> Any:
    """A row's share of the mean log loss, and its derivative by the logit."""
    small = math.exp(-abs(logit))
    loss = max(logit, 0.0) - logit * label + math.log1p(small)
    probability = 1 / (1 + small) if logit >= 0 else small / (1 + small)
    return share * loss, share * (probability - label)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def fm_rows(
    dim: Any, linear: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of LR (dim 0) and FM: logit = bias + sum w_i + (|sum v_i|^2 - sum |v_i|^2) / 2.

    dlogit/dv_i = s - v_i with s = sum v_j, dlogit/dw_i = 1. A slot gathers sum g s in `sums` and in `totals` sum g and
    how often it occurs.
    """
    size, wide, fields, to = np.uint64(dim), np.uint64(dim + linear), ids.shape[1], table.dtype.type
    s, grad, squares = np.zeros(dim + 1, to), np.zeros((1, dim + 1), to), np.zeros(dim + 1, to)
    loss, slope, shrink = 0.0, 0.0, to(l2)
    for b in range(low, high):
        if b + 1 < high:
            for f in range(fields):
                ask(table, offsets[f] + ids[b + 1, f], table.shape[1] if slots[b + 1, f] < 0 else dim + linear)
        logit = to(bias)
        for d in range(size):
            s[d] = squares[d] = 0
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            for d in range(size):
                s[d] += table[row, d]
                squares[d] += table[row, d] * table[row, d]
            if linear:
                logit += table[row, size]
        for d in range(size):
            logit += to(0.5) * (s[d] * s[d] - squares[d])
        part, g = loss_of(float(logit), labels[b], shares[b])
        loss, slope, g_ = loss + part, slope + g, to(g)
        for f in range(fields):
            row, slot = offsets[f] + ids[b, f], slots[b, f]
            if slot >= 0:
                totals[f, slot, 0] += g_
                totals[f, slot, 1] += 1
                for d in range(size):
                    sums[f, slot, d] += g_ * s[d]
                continue
            for d in range(size):
                grad[0, d] = g_ * s[d] + (shrink - g_) * table[row, d]
            if linear:
                grad[0, size] = g_ + shrink * table[row, size]
            move(kind, wide, row, table, clock, grad, 0, numbers, powers)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def ffm_rows(
    dim: Any, linear: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, table: Any, clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of FFM: logit = bias + sum w_i + scale sum_{i<j} <v_i for j, v_j for i>.

    dlogit/dv_i's part for j = scale v_j's part for i. A slot gathers sum g dlogit/dv in `sums`.
    """
    size, wide, fields, to = np.uint64(dim), np.uint64(dim + linear), ids.shape[1], table.dtype.type
    length, fours = np.uint64(dim // (fields - 1)), np.uint64(dim // (fields - 1) // 4 * 4)
    u0, u1, u2, u3, u4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    x, grad = np.zeros((fields, dim + 1), to), np.zeros((fields, dim + 1), to)
    loss, slope, shrink = 0.0, 0.0, to(l2)
    for b in range(low, high):
        if b + 1 < high:
            for f in range(fields):
                ask(table, offsets[f] + ids[b + 1, f], table.shape[1] if slots[b + 1, f] < 0 else dim + linear)
        logit, products = to(bias), to(0)
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            for d in range(wide):
                x[f, d] = table[row, d]
            if linear:
                logit += table[row, size]
        for i in range(fields):
            for j in range(i + 1, fields):
                mine, other = np.uint64(j - 1) * length, np.uint64(i) * length
                # Four at once, all read before any is written: the compiler makes one instruction of four.
                for d in range(u0, fours, u4):
                    a0, a1, a2, a3 = x[i, mine + d], x[i, mine + d + u1], x[i, mine + d + u2], x[i, mine + d + u3]
                    c0, c1, c2, c3 = x[j, other + d], x[j, other + d + u1], x[j, other + d + u2], x[j, other + d + u3]
                    grad[i, mine + d], grad[i, mine + d + u1] = c0, c1
                    grad[i, mine + d + u2], grad[i, mine + d + u3] = c2, c3
                    grad[j, other + d], grad[j, other + d + u1] = a0, a1
                    grad[j, other + d + u2], grad[j, other + d + u3] = a2, a3
                    products += (a0 * c0 + a1 * c1) + (a2 * c2 + a3 * c3)
                for d in range(fours, length):
                    a0, c0 = x[i, mine + d], x[j, other + d]
                    grad[i, mine + d], grad[j, other + d] = c0, a0
                    products += a0 * c0
        part, g = loss_of(float(logit + to(scale) * products), labels[b], shares[b])
        loss, slope, g_, slope_ = loss + part, slope + g, to(g), to(g * scale)
        for f in range(fields):
            row, slot = offsets[f] + ids[b, f], slots[b, f]
            if slot >= 0:
                totals[f, slot, 0] += g_
                totals[f, slot, 1] += 1
                for d in range(size):
                    sums[f, slot, d] += slope_ * grad[f, d]
                continue
            for d in range(size):
                grad[f, d] = slope_ * grad[f, d] + shrink * x[f, d]
            if linear:
                grad[f, size] = g_ + shrink * x[f, size]
            move(kind, wide, row, table, clock, grad, f, numbers, powers)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def repeated(
    dim: Any, linear: Any, kind: Any, first: Any, last: Any, slot_rows: Any, used: Any, minus: Any, l2: Any, table: Any,
    clock: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> None:  # fmt: skip
    """Moves the rows of the slots of fields first..last, and empties the slots: those of each thread (T, F, ...).

    An FM's gradient is sum g s - minus v sum g, with minus = 1; an FFM's sums are whole, with minus = 0.
    """
    size, wide, to = np.uint64(dim), np.uint64(dim + linear), table.dtype.type
    grad = np.zeros((1, dim + 1), to)
    for f in range(first, last):
        for k in range(used[f]):
            row, g, often = slot_rows[f, k], to(0), to(0)
            if k + 2 < used[f]:
                ask(table, slot_rows[f, k + 2], table.shape[1])
            for t in range(len(sums)):
                g += totals[t, f, k, 0]
                often += totals[t, f, k, 1]
                totals[t, f, k, 0] = totals[t, f, k, 1] = 0
            shrink = to(l2) * often
            for d in range(size):
                grad[0, d] = (shrink - to(minus) * g) * table[row, d]
            for t in range(len(sums)):
                for d in range(size):
                    grad[0, d] += sums[t, f, k, d]
                    sums[t, f, k, d] = 0
            if linear:
                grad[0, size] = g + shrink * table[row, size]
            move(kind, wide, row, table, clock, grad, 0, numbers, powers)
