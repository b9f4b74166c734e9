"""Leaves of boosted trees as fields (He et al. 2014; the Criteo challenge's 30 trees of depth 7).

A few trees are fitted on training rows; the leaf that a row falls into, in each of them, is a categorical field of
its own: a conjunction of up to `depth` conditions on the other fields.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.encode.tabular import Features, load_xgboost
from fieldwise.data.encode.tree_file import load_booster
from fieldwise.data.schema import FIRST, Layout

FILE = "leaves.ubj"
# Few trees learn no more from more rows, and all of those that they learn from are held in memory.
MOST_ROWS = 2_000_000
SETTINGS = {"objective": "binary:logistic", "tree_method": "hist", "learning_rate": 0.1, "max_cat_threshold": 64}


class Leaves:
    """Fitted trees over the fields before them. Ids follow the XGBoost numbers of a tree's leaves, from 2 on."""

    def __init__(self, layout: Layout, booster: Any) -> None:
        self.features, self.booster = Features(layout), booster
        self.booster.set_param({"nthread": 0})
        dumps = booster.get_dump()
        self.numbers = [np.sort([int(found) for found in re.findall(r"(\d+):leaf=", dump)]) for dump in dumps]

    @classmethod
    def fit(
        cls,
        layout: Layout,
        ids: NDArray[np.int32],
        labels: NDArray[Any],
        weights: NDArray[Any] | None,
        trees: int,
        depth: int,
    ) -> Leaves:
        xgboost = load_xgboost("--gbdt-leaves")
        features = Features(layout)
        rows = xgboost.QuantileDMatrix(
            features(ids), label=labels, weight=weights, feature_types=features.kinds, enable_categorical=True
        )
        return cls(layout, xgboost.train({**SETTINGS, "max_depth": depth}, rows, trees))

    @property
    def names(self) -> list[str]:
        return [f"leaf_{number}" for number in range(1, len(self.numbers) + 1)]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(FIRST + len(numbers) for numbers in self.numbers)

    def transform(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ids (n, C) of the fields before -> the ids (n, trees) of the leaves."""
        if not len(ids):
            return np.empty((0, len(self.numbers)), dtype=np.int32)
        xgboost = load_xgboost("a bundle with GBDT leaves")
        rows = xgboost.DMatrix(self.features(ids), feature_types=self.features.kinds, enable_categorical=True)
        found = self.booster.predict(rows, pred_leaf=True).reshape(len(ids), -1).astype(np.int64)
        columns = [np.searchsorted(own, found[:, tree]) + FIRST for tree, own in enumerate(self.numbers)]
        return np.stack(columns, axis=1).astype(np.int32)

    @property
    def fingerprint(self) -> str:
        return hashlib.blake2b(self.booster.save_raw(), digest_size=16).hexdigest()

    def save(self, folder: Path) -> None:
        self.booster.save_model(folder / FILE)

    @classmethod
    def load(cls, folder: Path, layout: Layout) -> Leaves:
        return cls(layout, load_booster(folder / FILE, Features(layout), "a bundle with GBDT leaves"))
