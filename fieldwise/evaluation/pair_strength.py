"""What a model has learned, measured on data: which fields act together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import Layout

Logits = Callable[[NDArray[np.int32]], NDArray[Any]]
# Rows in one call of the model: enough to keep it busy, few enough to stay small beside the data.
CALL_ROWS = 16384


def pair_strength(
    logits: Logits, ids: NDArray[np.int32], layout: Layout, rows: int = 512, seed: int = 0
) -> NDArray[np.float64]:
    """How much two fields act together, for any model: ids (n, C) -> (F, F), symmetric, zero diagonal.

    Entry (i, j) is the root mean square, over sampled rows x and a partner row for each, of the mixed second
    difference f(x) - f(x with the partner's i) - f(x with the partner's j) + f(x with both), in logits. It is
    0 where the two fields' effects just add up, and everywhere if there is only one row.

    >>> product = lambda ids: 2.0 * ids[:, 0] * ids[:, 1] + ids[:, 2]
    >>> ids = np.array([[0, 0, 0], [1, 1, 1]], dtype=np.int32)
    >>> pair_strength(product, ids, Layout.of((2, 2, 2)))
    array([[0., 2., 0.],
           [2., 0., 0.],
           [0., 0., 0.]])
    """
    fields = layout.fields
    strength = np.zeros((fields, fields))
    if len(ids) < 2 or fields < 2:
        return strength
    x, partner = _sample(ids, rows, seed)
    # belongs[f, c]: column c is one of field f's; a set field has several.
    belongs = np.array(layout.column_fields) == np.arange(fields)[:, None]
    differs = (x != partner) @ belongs.T
    first, second = np.triu_indices(fields, k=1)
    both = belongs[first] | belongs[second]

    plain = _call(logits, x)
    single = np.tile(plain[:, None], fields)
    row, field = np.nonzero(differs)
    single[row, field] = _swapped(logits, x, partner, row, belongs, field)
    # Where the partner agrees in either field, the difference is 0 without asking the model.
    row, pair = np.nonzero(differs[:, first] & differs[:, second])
    double = _swapped(logits, x, partner, row, both, pair)
    mixed = plain[row] - single[row, first[pair]] - single[row, second[pair]] + double
    squares = np.bincount(pair, weights=mixed**2, minlength=len(first))
    strength[first, second] = np.sqrt(squares / len(x))
    return strength + strength.T


def _sample(ids: NDArray[np.int32], rows: int, seed: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distinct rows and, for each, another row as its partner."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(ids), min(rows, len(ids)), replace=False)
    others = (chosen + rng.integers(1, len(ids), len(chosen))) % len(ids)
    return np.asarray(ids[chosen]), np.asarray(ids[others])


def _swapped(
    logits: Logits,
    x: NDArray[np.int32],
    partner: NDArray[np.int32],
    row: NDArray[np.intp],
    columns: NDArray[np.bool_],
    choice: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Logits of x[row] with the columns of columns[choice] taken from the partner, in bounded parts."""
    found = np.empty(len(row))
    for start in range(0, len(row), CALL_ROWS):
        part = slice(start, start + CALL_ROWS)
        found[part] = _call(logits, np.where(columns[choice[part]], partner[row[part]], x[row[part]]))
    return found


def _call(logits: Logits, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    return np.asarray(logits(ids), dtype=np.float64)
