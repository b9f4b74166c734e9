"""A whole training step of LR, FM and FFM in three loops over a batch (CPU, numba).

    group    which rows of the tables occur once in the batch, and which more often: those get a slot
    rows     row by row: logit, loss and its derivative g; the gradient of a row that occurs once moves it at once, for
             no other row of the batch looks at it; the others' gradients are added up in their slots
    repeated the rows of the slots move, once each

So every gradient is taken at the weights before the batch, and every row moves once, by its summed gradient. The plain
version is `steps.Step` on the same model. Sums over repeated rows are taken in the order of the batch, in one part for
each thread: the result is the same for the same number of threads.

A table is four arrays: weights and the optimiser's two states (N, D), and the last step of each row (N,) where
moments decay, else empty; a model without it has four empty ones. v... are those of the vectors, w... those of the linear part.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from fieldwise.kernels.prefetch import prefetch

ADAM, ADAGRAD, FTRL = 0, 1, 2
LINE = 16  # float32 numbers of a cache line
# Sums may be taken in any order and products fused with them; what is not a number stays so.
FAST = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True)
def group(ids: Any, offsets: Any, first: Any, last: Any, seen: Any, slots: Any, slot_rows: Any, used: Any) -> None:
    """Fields first..last: the slot of each place (B, F), -1 where its row occurs once; slot_rows[f, k] is that of slot k.

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
def move(
    kind: Any, dim: Any, row: Any, weight: Any, one: Any, two: Any, last: Any, grad: Any, start: Any, numbers: Any,
    powers: Any,
) -> None:  # fmt: skip
    """One step of one row along grad[start] (D,): the formulas of optim/adam.py, adagrad.py and ftrl.py."""
    to = weight.dtype.type
    if kind == ADAM:
        keep1, keep2 = to(numbers[1]), to(numbers[2])
        if len(last):
            step = int(numbers[0])
            gap = step - last[row]
            last[row] = step
            if gap < len(powers):
                keep1, keep2 = to(powers[gap, 0]), to(powers[gap, 1])
            else:
                keep1, keep2 = to(numbers[1] ** gap), to(numbers[2] ** gap)
        new1, new2, rate, eps = to(1 - numbers[1]), to(1 - numbers[2]), to(numbers[3]), to(numbers[4])
        for d in range(dim):
            g = grad[start, d]
            mean = one[row, d] * keep1 + new1 * g
            square = two[row, d] * keep2 + new2 * g * g
            one[row, d] = mean
            two[row, d] = square
            weight[row, d] -= rate * mean / (math.sqrt(square) + eps)
    elif kind == ADAGRAD:
        initial, rate, eps = to(numbers[1]), to(numbers[3]), to(numbers[4])
        for d in range(dim):
            g = grad[start, d]
            total = one[row, d] + g * g
            one[row, d] = total
            weight[row, d] -= rate * g / (math.sqrt(total + initial) + eps)
    else:
        l1, l2, faster, beta = to(numbers[1]), to(numbers[2]), to(1 / numbers[3]), to(numbers[4])
        for d in range(dim):
            w, z, n, g = weight[row, d], one[row, d], two[row, d], grad[start, d]
            if n == 0:
                z = -w * (beta * faster + l2) - l1 * (to(w > 0) - to(w < 0))
            more = n + g * g
            root = math.sqrt(more)
            z += g - (root - math.sqrt(n)) * faster * w
            one[row, d] = z
            two[row, d] = more
            new = (max(-l1, min(z, l1)) - z) / ((root + beta) * faster + l2)
            weight[row, d] = w if more == 0 else new


@njit(cache=True, nogil=True, inline="always")
def ask(dim: Any, row: Any, moves: Any, weight: Any, one: Any, two: Any, last: Any) -> None:
    """Asks for a row's numbers, its state too if it will move."""
    for d in range(0, dim, LINE):
        prefetch(weight, row * dim + d)
        if moves:
            prefetch(one, row * dim + d)
            prefetch(two, row * dim + d)
    if moves and len(last):
        prefetch(last, row)


@njit(cache=True, nogil=True, inline="always")
def loss_of(logit: Any, label: Any, share: Any) -> Any:
    """A row's share of the mean log loss, and its derivative by the logit."""
    small = math.exp(-abs(logit))
    loss = max(logit, 0.0) - logit * label + math.log1p(small)
    probability = 1 / (1 + small) if logit >= 0 else small / (1 + small)
    return share * loss, share * (probability - label)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def fm_rows(
    dim: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, v: Any, v1: Any, v2: Any, v_last: Any, w: Any, w1: Any, w2: Any, w_last: Any,
    numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of LR (D = 0) and FM: logit = bias + sum w_i + (|sum v_i|^2 - sum |v_i|^2) / 2.

    dlogit/dv_i = s - v_i with s = sum v_j. A slot gathers sum g s in `sums` and sum g, and how often, in `totals`.
    """
    fields, to, has_linear = ids.shape[1], v.dtype.type, len(w) > 0
    s, grad = np.empty(dim, v.dtype), np.empty((1, max(dim, 1)), v.dtype)
    loss, slope, shrink = 0.0, 0.0, to(l2)
    for b in range(low, high):
        if b + 1 < high:
            for f in range(fields):
                row, once = offsets[f] + ids[b + 1, f], slots[b + 1, f] < 0
                ask(dim, row, once, v, v1, v2, v_last)
                if has_linear:
                    ask(1, row, once, w, w1, w2, w_last)
        squares, logit = to(0), to(bias)
        for d in range(dim):
            s[d] = 0
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            for d in range(dim):
                x = v[row, d]
                s[d] += x
                squares += x * x
            if has_linear:
                logit += w[row, 0]
        for d in range(dim):
            logit += to(0.5) * s[d] * s[d]
        part, g = loss_of(float(logit - to(0.5) * squares), labels[b], shares[b])
        loss, slope, g_ = loss + part, slope + g, to(g)
        for f in range(fields):
            row, slot = offsets[f] + ids[b, f], slots[b, f]
            if slot >= 0:
                totals[f, slot, 0] += g_
                totals[f, slot, 1] += 1
                for d in range(dim):
                    sums[f, slot, d] += g_ * s[d]
                continue
            if dim:
                for d in range(dim):
                    grad[0, d] = g_ * s[d] + (shrink - g_) * v[row, d]
                move(kind, dim, row, v, v1, v2, v_last, grad, 0, numbers, powers)
            if has_linear:
                grad[0, 0] = g_ + shrink * w[row, 0]
                move(kind, 1, row, w, w1, w2, w_last, grad, 0, numbers, powers)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def ffm_rows(
    dim: Any, kind: Any, ids: Any, offsets: Any, slots: Any, labels: Any, shares: Any, low: Any, high: Any,
    bias: Any, scale: Any, l2: Any, v: Any, v1: Any, v2: Any, v_last: Any, w: Any, w1: Any, w2: Any, w_last: Any,
    numbers: Any, powers: Any, sums: Any, totals: Any,
) -> Any:  # fmt: skip
    """Rows low..high of FFM: logit = bias + sum w_i + scale sum_{i<j} <v_i for j, v_j for i>.

    dlogit/dv_i's part for j = scale v_j's part for i. A slot gathers sum g dlogit/dv in `sums`.
    """
    fields, to, has_linear = ids.shape[1], v.dtype.type, len(w) > 0
    size = dim // (fields - 1)
    x, grad, single = np.empty((fields, dim), v.dtype), np.empty((fields, dim), v.dtype), np.empty((1, 1), v.dtype)
    loss, slope, shrink = 0.0, 0.0, to(l2)
    for b in range(low, high):
        if b + 1 < high:
            for f in range(fields):
                row, once = offsets[f] + ids[b + 1, f], slots[b + 1, f] < 0
                ask(dim, row, once, v, v1, v2, v_last)
                if has_linear:
                    ask(1, row, once, w, w1, w2, w_last)
        logit, products = to(bias), to(0)
        for f in range(fields):
            row = offsets[f] + ids[b, f]
            for d in range(dim):
                x[f, d] = v[row, d]
            if has_linear:
                logit += w[row, 0]
        for i in range(fields):
            for j in range(i + 1, fields):
                for d in range(size):
                    mine, other = x[i, (j - 1) * size + d], x[j, i * size + d]
                    products += mine * other
                    grad[i, (j - 1) * size + d] = other
                    grad[j, i * size + d] = mine
        part, g = loss_of(float(logit + to(scale) * products), labels[b], shares[b])
        loss, slope, g_, slope_ = loss + part, slope + g, to(g), to(g * scale)
        for f in range(fields):
            row, slot = offsets[f] + ids[b, f], slots[b, f]
            if slot >= 0:
                totals[f, slot, 0] += g_
                totals[f, slot, 1] += 1
                for d in range(dim):
                    sums[f, slot, d] += slope_ * grad[f, d]
                continue
            for d in range(dim):
                grad[f, d] = slope_ * grad[f, d] + shrink * x[f, d]
            move(kind, dim, row, v, v1, v2, v_last, grad, f, numbers, powers)
            if has_linear:
                single[0, 0] = g_ + shrink * w[row, 0]
                move(kind, 1, row, w, w1, w2, w_last, single, 0, numbers, powers)
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def repeated(
    dim: Any, kind: Any, first: Any, last: Any, slot_rows: Any, used: Any, minus: Any, l2: Any, v: Any, v1: Any,
    v2: Any, v_last: Any, w: Any, w1: Any, w2: Any, w_last: Any, numbers: Any, powers: Any, sums: Any, totals: Any,
) -> None:  # fmt: skip
    """Moves the rows of the slots of fields first..last, and empties the slots: sums, totals of each thread (T, F, ...).

    An FM's gradient is sum g s - minus v sum g, with minus = 1; an FFM's sums are whole, with minus = 0.
    """
    to, has_linear, grad = v.dtype.type, len(w) > 0, np.empty((1, max(dim, 1)), v.dtype)
    for f in range(first, last):
        for k in range(used[f]):
            row, g, often = slot_rows[f, k], to(0), to(0)
            if k + 4 < used[f]:
                ask(dim, slot_rows[f, k + 4], True, v, v1, v2, v_last)
            for t in range(len(sums)):
                g += totals[t, f, k, 0]
                often += totals[t, f, k, 1]
                totals[t, f, k, 0] = totals[t, f, k, 1] = 0
            if dim:
                share = to(l2) * often - to(minus) * g
                for d in range(dim):
                    grad[0, d] = share * v[row, d]
                for t in range(len(sums)):
                    for d in range(dim):
                        grad[0, d] += sums[t, f, k, d]
                        sums[t, f, k, d] = 0
                move(kind, dim, row, v, v1, v2, v_last, grad, 0, numbers, powers)
            if has_linear:
                grad[0, 0] = g + to(l2) * often * w[row, 0]
                move(kind, 1, row, w, w1, w2, w_last, grad, 0, numbers, powers)
