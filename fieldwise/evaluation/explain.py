"""What a model has learned, measured on data: which fields act together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import Layout

Logits = Callable[[NDArray[np.int32]], NDArray[Any]]
# Rows in one call of the model, and cells: enough to keep it busy, few enough to stay small beside the data.
CALL_ROWS, CALL_CELLS = 16384, 8_000_000
# Cells that the model reads while the strongest of very many fields are sought.
SCREEN_CELLS = 400_000_000


def pair_strength(
    logits: Logits,
    ids: NDArray[np.int32],
    layout: Layout,
    rows: int = 512,
    seed: int = 0,
    among: Sequence[int] | None = None,
) -> NDArray[np.float64]:
    """How much two fields act together, for any model: ids (n, C) -> (F, F), symmetric, zero diagonal.

    Entry (i, j) is the root mean square, over sampled rows x and a partner row for each, of the mixed second
    difference f(x) - f(x with the partner's i) - f(x with the partner's j) + f(x with both), in logits. It is
    0 where the two fields' effects just add up, and everywhere if there is only one row. F are all fields, or those
    `among` them.

    >>> product = lambda ids: 2.0 * ids[:, 0] * ids[:, 1] + ids[:, 2]
    >>> ids = np.array([[0, 0, 0], [1, 1, 1]], dtype=np.int32)
    >>> pair_strength(product, ids, Layout.of((2, 2, 2)))
    array([[0., 2., 0.],
           [2., 0., 0.],
           [0., 0., 0.]])
    """
    chosen = np.arange(layout.fields) if among is None else np.asarray(among)
    strength = np.zeros((len(chosen), len(chosen)))
    if len(ids) < 2 or len(chosen) < 2:
        return strength
    swaps = _Swaps(logits, *_sample(ids, rows, seed), layout)
    plain, single = swaps.plain, swaps.single(chosen)
    first, second = np.triu_indices(len(chosen), k=1)
    differs = swaps.differs[:, chosen]
    # Where the partner agrees in either field, the difference is 0 without asking the model.
    row, pair = np.nonzero(differs[:, first] & differs[:, second])
    double = swaps(row, np.stack([chosen[first[pair]], chosen[second[pair]]], axis=1))
    mixed = plain[row] - single[row, first[pair]] - single[row, second[pair]] + double
    squares = np.bincount(pair, weights=mixed**2, minlength=len(first))
    strength[first, second] = np.sqrt(squares / len(plain))
    return strength + strength.T


def strongest(logits: Logits, ids: NDArray[np.int32], layout: Layout, most: int, seed: int = 0) -> list[int]:
    """The fields, in their order, whose values alone move the logit most: on a few rows where columns are many."""
    rows = max(1, SCREEN_CELLS // (layout.fields * layout.columns))
    if len(ids) < 2:
        return list(range(layout.fields))[:most]
    swaps = _Swaps(logits, *_sample(ids, rows, seed), layout)
    moved = ((swaps.single(np.arange(layout.fields)) - swaps.plain[:, None]) ** 2).sum(axis=0)
    return sorted(np.argsort(-moved, kind="stable")[:most].tolist())


def _sample(ids: NDArray[np.int32], rows: int, seed: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distinct rows and, for each, another row as its partner."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(ids), min(rows, len(ids)), replace=False)
    others = (chosen + rng.integers(1, len(ids), len(chosen))) % len(ids)
    return np.asarray(ids[chosen]), np.asarray(ids[others])


class _Swaps:
    """Logits of rows x (n, C) with some fields taken from a partner row each."""

    def __init__(self, logits: Logits, x: NDArray[np.int32], partner: NDArray[np.int32], layout: Layout) -> None:
        self.logits, self.x, self.partner = logits, x, partner
        self.owners = np.array(layout.column_fields)
        starts = np.searchsorted(self.owners, np.arange(layout.fields))
        # Where the partner has another value (n, F); a set field has several columns.
        self.differs = np.logical_or.reduceat(x != partner, starts, axis=1)
        self.plain = self._call(x)

    def single(self, fields: NDArray[np.int64]) -> NDArray[np.float64]:
        """Logits with one field swapped: (n, len(fields))."""
        found = np.tile(self.plain[:, None], len(fields))
        row, place = np.nonzero(self.differs[:, fields])
        found[row, place] = self(row, fields[place][:, None])
        return found

    def __call__(self, row: NDArray[np.intp], fields: NDArray[np.int64]) -> NDArray[np.float64]:
        """Logits of x[row] with the fields (n, k) swapped, in bounded parts."""
        found = np.empty(len(row))
        most = max(1, min(CALL_ROWS, CALL_CELLS // len(self.owners)))
        for start in range(0, len(row), most):
            part = slice(start, start + most)
            swapped = (self.owners == fields[part][:, :, None]).any(axis=1)
            found[part] = self._call(np.where(swapped, self.partner[row[part]], self.x[row[part]]))
        return found

    def _call(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        return np.asarray(self.logits(ids), dtype=np.float64)
