"""The linear part of a model as curves: how the weights of a field's ids follow from a few numbers, which are fitted.

A number has an id for each of its buckets, and few rows cannot say a weight for each: its weights are a straight line
and a smooth curve over the buckets. A category has a weight for each id, and a line beside them where its words are
numbers. What is fitted is drawn towards 0, each kind of it as strongly as the rows themselves say: the strengths are
those of the highest evidence, by MacKay's rule (Laplace's approximation), so that no rows are held out for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.kinds.kind import FIRST, PAD
from fieldwise.data.schema import Layout
from fieldwise.evaluation.metrics import sigmoid

# What a column of the design is: a line over numbers, a wave over their ranks, an id of its own, one beside a line.
LINE, WAVE, ID, BESIDE = range(4)
KINDS = 4
# Waves of a number, the last of which goes up and down four times; the shorter it is, the less it is believed.
WAVES, SMOOTH = 8, 1.5
# A fit with more columns, or more products of rows and pairs of columns, takes longer than epochs of steps would.
MOST_COLUMNS, MOST_PRODUCTS = 2_000, 5e9
Floats = NDArray[np.float64]


def affordable(layout: Layout, rows: int, share: float = 1.0) -> bool:
    """Whether curves over these fields can be fitted to this number of rows within seconds, by at most this share of
    the limits: a later fit on more rows, which have more ids, needs room."""
    sizes = zip(layout.sizes, range(layout.fields), strict=True)
    columns = sum(min(size, FIRST + 1 + WAVES) if field in layout.ordered else size + 1 for size, field in sizes)
    return columns <= share * MOST_COLUMNS and rows * columns**2 <= share * MOST_PRODUCTS


@dataclass(frozen=True)
class Curves:
    """For each field what its ids say: the rows (K, d) of its `tables`, and the kind of each of all columns."""

    layout: Layout
    tables: Sequence[Floats]
    kinds: NDArray[np.int64]

    @classmethod
    def of(cls, layout: Layout, numbers: Sequence[Floats | None], ids: NDArray[np.int32]) -> Curves:
        """Those of fields whose ids stand for `numbers`, NaN where they stand for none, by the ids (n, C) of training
        rows."""
        tables, kinds = list[Floats](), list[int]()
        for field, own in enumerate(_by_field(layout, ids)):
            rows = np.bincount(own[own != PAD], minlength=layout.sizes[field]).astype(np.float64)
            columns = _columns(rows, numbers[field], field in layout.ordered)
            kinds += [kind for kind, _ in columns]
            tables.append(np.stack([column for _, column in columns], axis=1) if columns else np.empty((len(rows), 0)))
        return cls(layout, tables, np.array(kinds, dtype=np.int64))

    def design(self, ids: NDArray[np.int32]) -> Floats:
        """The columns (n, D) of rows with these ids (n, C): those of a field with several ids are their mean."""
        found = np.empty((len(ids), len(self.kinds)))
        place = 0
        for own, table in zip(_by_field(self.layout, ids), self.tables, strict=True):
            into = found[:, place : place + table.shape[1]]
            place += table.shape[1]
            if own.shape[1] == 1:
                into[:] = table[own[:, 0]]
                continue
            into[:] = 0
            used = own != PAD
            for column, there in zip(own.T, used.T, strict=True):
                into[there] += table[column[there]]
            into /= np.maximum(used.sum(axis=1, keepdims=True), 1)
        return found

    def weights(self, found: Floats) -> list[Floats]:
        """What was fitted (D,), as a weight for each id of each field."""
        ends = np.cumsum([table.shape[1] for table in self.tables])[:-1]
        return [table @ own for table, own in zip(self.tables, np.split(found, ends), strict=True)]


def _by_field(layout: Layout, ids: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """The ids (n, width) of each field."""
    return np.split(ids, np.cumsum(layout.widths)[:-1], axis=1)


def _columns(rows: Floats, numbers: Floats | None, ordered: bool) -> list[tuple[int, Floats]]:
    """The columns (K,) of a field, with their kinds; `rows` (K,) says how many training rows have each of its ids."""
    known = np.zeros(len(rows), dtype=bool) if numbers is None else np.isfinite(numbers)
    own = [place for place in np.flatnonzero(rows).tolist() if not (ordered and known[place])]
    columns = [(BESIDE if known[place] else ID, np.eye(1, len(rows), place)[0]) for place in own]
    if numbers is None or np.count_nonzero(rows[known]) < 2:
        return columns
    columns.append((LINE, _scaled(np.where(known, numbers, 0.0), rows, known)))
    if not ordered or np.count_nonzero(rows[known]) < 3:
        return columns
    inside = np.where(known, rows, 0.0)
    order = np.argsort(np.where(known, numbers, np.inf), kind="stable")
    rank = np.empty(len(rows))
    rank[order] = (np.cumsum(inside[order]) - inside[order] / 2) / inside.sum()
    for wave in range(1, min(WAVES, int(np.count_nonzero(inside)) - 1) + 1):
        height = np.where(known, np.cos(np.pi * wave * rank), 0.0)
        columns.append((WAVE, np.sqrt(2) * wave**-SMOOTH * _centred(height, rows, known)))
    return columns


def _centred(column: Floats, rows: Floats, known: NDArray[np.bool_]) -> Floats:
    mean = np.average(column[known], weights=rows[known])
    return np.where(known, column - mean, 0.0)


def _scaled(column: Floats, rows: Floats, known: NDArray[np.bool_]) -> Floats:
    """The column with the mean 0 and the variance 1 over the rows that have a number."""
    centred = _centred(column, rows, known)
    spread = np.sqrt(np.average(centred[known] ** 2, weights=rows[known]))
    return centred / spread if spread > 0 else centred


@dataclass(frozen=True)
class Fit:
    """What was fitted: a number for each column (D,), the bias, and the strength of each kind of column."""

    found: Floats
    bias: float
    strengths: Floats


# Strengths at first, and between which they stay; steps at most, those before strengths move, and when they rest.
FIRST_STRENGTH, STRENGTHS = 3.0, (0.02, 1e4)
STEPS, STEADY, RESTS = 40, 2, 0.05
# Before any row is seen: a hundredth of a weight, with a variance of .1.
WORTH, VARIANCE = 0.01, 0.1


def fitted(x: Floats, labels: NDArray[np.number], kinds: NDArray[np.int64], weights: Floats | None = None) -> Fit:
    """The logistic regression on columns x (n, D), with a ridge penalty for each kind of column of the strength that
    has the highest evidence."""
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else weights * (weights.sum() / (weights * weights).sum())
    x = np.hstack([np.ones((len(y), 1)), x])
    values, strengths = np.zeros(x.shape[1]), np.full(KINDS, FIRST_STRENGTH)
    base = np.average(y, weights=w)
    values[0] = np.log(base / (1 - base))
    resting = False
    for step in range(STEPS):
        ridge = np.concatenate([[1e-6], strengths[kinds]])
        p = sigmoid(x @ values)
        halves = x * np.sqrt(w * p * (1 - p))[:, None]
        hessian = halves.T @ halves  # of a matrix by itself BLAS computes one half
        hessian[np.diag_indices_from(hessian)] += ridge + 1e-9
        inverse = np.linalg.inv(hessian)
        move = inverse @ (x.T @ (w * (p - y)) + ridge * values)
        values = _downhill(x, y, w, ridge, values, move)
        if resting and np.abs(move).max() < 1e-3:
            break
        if step >= STEADY and not resting:
            before, strengths = strengths, _stronger(values[1:], np.diag(inverse)[1:], kinds, strengths)
            resting = bool(np.abs(np.log(strengths / before)).max() < RESTS)
    return Fit(values[1:], float(values[0]), strengths)


def _stronger(values: Floats, variances: Floats, kinds: NDArray[np.int64], strengths: Floats) -> Floats:
    """The strengths by which the squares of the values are as large as the number of them that the rows say."""
    said = np.bincount(kinds, minlength=KINDS) - strengths * np.bincount(kinds, variances, minlength=KINDS)
    squares = np.bincount(kinds, values**2, minlength=KINDS)
    return np.clip((said + WORTH) / (squares + WORTH * VARIANCE), *STRENGTHS)


def _downhill(x: Floats, y: Floats, w: Floats, ridge: Floats, values: Floats, move: Floats) -> Floats:
    """The values after a step of Newton's method, halved until the penalised loss falls."""

    def loss(at: Floats) -> float:
        logits = x @ at
        return float(w @ (np.logaddexp(0, logits) - y * logits) + ridge @ at**2 / 2)

    size, before = 1.0, loss(values)
    while loss(values - size * move) > before and size > 1e-9:
        size /= 2
    return values - size * move
