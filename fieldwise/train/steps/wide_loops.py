"""A training step of LR and FM over fields of several ids (CPU, numba): first losses by rows, then the table by fields.

A field's members lie in its own rows of the table, so that threads share the fields among them, and the sums do not
depend on how many threads there are. What shallow_loops.py says of the table holds here too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fieldwise.loops.instructions import pointer
from fieldwise.nn.wide_loops import Fields, members
from fieldwise.optim.moves import Gradient, decays, move_row
from fieldwise.train.steps.shallow_loops import Floats, Table, Update, loss_of


@njit(cache=True, nogil=True)
def losses(logits: Floats, labels: Floats, shares: NDArray[np.float64], slopes: Floats) -> tuple[float, float]:
    """The loss of rows and its derivative by the bias; writes those by each row's logit."""
    loss, slope = 0.0, 0.0
    for b in range(len(logits)):
        part, g = loss_of(float(logits[b]), labels[b], shares[b])
        loss, slope = loss + part, slope + g
        slopes[b] = g
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def move_fields(
    ids: NDArray[np.int32], fields: Fields, first: int, last: int, slopes: Floats, sums: Floats, table: Table,
    update: Update, places: NDArray[np.int32], grads: Floats,
) -> None:  # fmt: skip
    """Moves the rows of the table that fields first..last have in a batch, once each, by their summed gradients.

    With g the slope of a row's logit, a field's vector v has the gradient g (s - v) + l2 v and its weight w g + l2 w;
    a member has its share of it. `places` (N,), all -1 before and after, says where in `grads` (slots, size) a row has
    its sum.
    """
    dim, wide, to = table.dim, table.dim + table.linear, table.numbers.dtype.type
    flat, stride, numbers = pointer(table.numbers), table.numbers.shape[1], table.numbers
    clock, ticks, powers, known = pointer(table.clock), table.clock.shape[1], pointer(update.powers), len(update.powers)
    most, size, gathered, l2 = fields.widths.max(), grads.shape[1], pointer(grads), to(update.l2)
    rows, shares = np.empty(most, np.int64), np.empty(most, numbers.dtype)
    own, touched, none = np.empty(wide, numbers.dtype), np.empty(len(grads), np.int64), np.zeros(size, numbers.dtype)
    for f in range(first, last):
        used = 0
        for b in range(len(ids)):
            count, g = members(ids, b, f, fields, rows, shares), slopes[b]
            own[:] = 0
            for k in range(count):
                for d in range(wide):
                    own[d] += shares[k] * numbers[rows[k], d]
            for d in range(dim):
                own[d] = g * (sums[b, d] - own[d]) + l2 * own[d]
            for d in range(dim, wide):
                own[d] = g + l2 * own[d]
            for k in range(count):
                slot = places[rows[k]]
                if slot < 0:
                    slot = places[rows[k]] = used
                    touched[slot] = rows[k]
                    grads[slot] = 0
                    used += 1
                for d in range(wide):
                    grads[slot, d] += shares[k] * own[d]
        for slot in range(used):
            row = touched[slot]
            places[row] = -1
            kept = decays(update.kind, to, clock, (row + 1) * ticks - 1, update.numbers, powers, known)
            along = Gradient(gathered, slot * size, to(1), pointer(none), to(0), to(0))
            move_row(update.kind, to, wide, flat, row * stride, kept, along, update.numbers)


def room(rows: int, fields: Fields, wide: int, kind: Any) -> Floats:
    """The sums of a field's rows in a batch; whole lines, because loops read sixteen numbers at a time."""
    # An interpolated number has two members, whatever its width.
    most = int(np.where(fields.interpolated, 2, fields.widths).max())
    return np.zeros((rows * most + 1, -(-wide // 16) * 16), kind)
