"""Interactions of fields, for any model: the logits of rows in which some fields get other values.

The interaction of two fields is the mixed second difference f(x) - f(x with i swapped) - f(x with j swapped) + f(x with
both). `pair_strength` takes the values to swap from other rows and measures the size of the difference over the data.
contributions.py takes the same differences of one row, with missing values to swap. pair_maps.py reads interactions
from a network's weights, without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import Layout

Logits = Callable[[NDArray[np.int32]], NDArray[Any]]
Floats = NDArray[np.float64]
Whole = NDArray[np.intp]
# Rows and cells of one call of the model: enough to keep it busy, few beside the data.
CALL_ROWS, CALL_CELLS = 16384, 4_000_000
# Cells that the model reads to find the strongest of very many fields.
SCREEN_CELLS = 100_000_000
# Up to how many fields all pairs are measured; and of how many where there are more, as pairs grow with their square.
MOST_PAIRED, PAIRED = 200, 20
# The rows that a report's map is measured on.
MAP_ROWS = 128


class Swaps:
    """Rows x (n, C) with logits `plain` (n,) and a partner row (n, C) each; `single` (n, F) are the logits with one
    field taken from the partner. F are all fields, or those in `among`. If the partner has the same value, the logit is
    the same and the model is not called."""

    def __init__(
        self,
        logits: Logits,
        x: NDArray[np.int32],
        plain: NDArray[Any],
        partner: NDArray[np.int32],
        layout: Layout,
        among: Sequence[int] | None = None,
    ) -> None:
        self.logits, self.x, self.partner = logits, x, partner
        fields, owners = np.arange(layout.fields), np.array(layout.column_fields)
        chosen = fields if among is None else np.asarray(among)
        # belongs[f, c]: column c belongs to field f; a set field has several.
        self.belongs = owners == chosen[:, None]
        order = np.argsort(owners, kind="stable")
        differs = (x != partner)[:, order]
        self.differs = np.logical_or.reduceat(differs, np.searchsorted(owners[order], fields), axis=1)[:, chosen]
        self.plain = np.asarray(plain, dtype=np.float64)
        self.single = np.tile(self.plain[:, None], len(chosen))
        row, field = np.nonzero(self.differs)
        self.single[row, field] = self._swapped(row, self.belongs, field)

    def mixed(self, first: Whole, second: Whole) -> tuple[Floats, Whole]:
        """The mixed differences of pairs (P,) of fields, flat, and the pair of each; without those that are 0 because
        the partner has the same value in one of the fields."""
        row, pair = np.nonzero(self.differs[:, first] & self.differs[:, second])
        both = self._swapped(row, self.belongs[first] | self.belongs[second], pair)
        return self.plain[row] - self.single[row, first[pair]] - self.single[row, second[pair]] + both, pair

    def _swapped(self, row: Whole, columns: NDArray[np.bool_], choice: Whole) -> Floats:
        """Logits of x[row] with the columns of columns[choice] taken from the partner, in bounded parts."""
        found = np.empty(len(row))
        most = max(1, min(CALL_ROWS, CALL_CELLS // self.x.shape[1]))
        for start in range(0, len(row), most):
            part = slice(start, start + most)
            here = row[part]
            found[part] = self.logits(np.where(columns[choice[part]], self.partner[here], self.x[here]))
        return found


def pair_strength(
    logits: Logits,
    ids: NDArray[np.int32],
    layout: Layout,
    rows: int = 512,
    seed: int = 0,
    among: Sequence[int] | None = None,
) -> Floats:
    """The strength of the interaction of any two fields, for any model: ids (n, C) -> (F, F), symmetric, zero diagonal.

    Entry (i, j) is the root mean square, over sampled rows x and a partner row for each, of the mixed second
    difference f(x) - f(x with the partner's i) - f(x with the partner's j) + f(x with both), in logits. It is
    0 where the effects of the two fields add up, and everywhere if there is only one row. F are all fields, or those in
    `among`.

    >>> product = lambda ids: 2.0 * ids[:, 0] * ids[:, 1] + ids[:, 2]
    >>> ids = np.array([[0, 0, 0], [1, 1, 1]], dtype=np.int32)
    >>> pair_strength(product, ids, Layout.of((2, 2, 2)))
    array([[0., 2., 0.],
           [2., 0., 0.],
           [0., 0., 0.]])
    """
    fields = layout.fields if among is None else len(among)
    strength = np.zeros((fields, fields))
    if len(ids) < 2 or fields < 2:
        return strength
    x, partner = _sample(ids, rows, seed)
    first, second = np.triu_indices(fields, k=1)
    mixed, pair = Swaps(logits, x, logits(x), partner, layout, among).mixed(first, second)
    squares = np.bincount(pair, weights=mixed**2, minlength=len(first))
    strength[first, second] = np.sqrt(squares / len(x))
    return strength + strength.T


def strength_of_pairs(logits: Logits, ids: NDArray[np.int32], layout: Layout, names: Sequence[str]) -> dict[str, Any]:
    """What a report says of pairs: the strength of all, or of those of the strongest fields where there are many."""
    if layout.fields <= MOST_PAIRED:
        strength = pair_strength(logits, ids, layout, MAP_ROWS)
        return {"fields": list(names), "matrix": strength.round(6).tolist()}
    among = strongest(logits, ids, layout, PAIRED)
    strength = pair_strength(logits, ids, layout, MAP_ROWS, among=among)
    return {"fields": [names[f] for f in among], "of": layout.fields, "matrix": strength.round(6).tolist()}


def strongest(logits: Logits, ids: NDArray[np.int32], layout: Layout, most: int, seed: int = 0) -> list[int]:
    """The fields, in order, that change the logit most when swapped alone; uses fewer rows if columns are many."""
    if len(ids) < 2:
        return list(range(layout.fields))[:most]
    x, partner = _sample(ids, max(1, SCREEN_CELLS // (layout.fields * layout.columns)), seed)
    swaps = Swaps(logits, x, logits(x), partner, layout)
    moved = ((swaps.single - swaps.plain[:, None]) ** 2).sum(axis=0)
    return sorted(np.argsort(-moved, kind="stable")[:most].tolist())


def _sample(ids: NDArray[np.int32], rows: int, seed: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Distinct rows and, for each, another row as its partner."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(ids), min(rows, len(ids)), replace=False)
    others = (chosen + rng.integers(1, len(ids), len(chosen))) % len(ids)
    return np.asarray(ids[chosen]), np.asarray(ids[others])
