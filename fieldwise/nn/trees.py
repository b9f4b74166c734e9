"""GBDT by XGBoost, with the interface of the networks: ids (n, C) -> logits (n,).

Trees read the ids of the same encoder, so that an unseen value is `other` and never fails; data/encode/tabular.py
says how. All training rows are held in memory as float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.data.dataset import Part
from fieldwise.data.encode.tabular import Features, load_xgboost
from fieldwise.data.encode.tree_file import load_booster, save_booster
from fieldwise.data.schema import Layout

# Numbers in the training rows that are worth a thread.
THREAD_CELLS = 1_000_000
# The least value of each option that has one.
LEAST = {
    "rounds": 1,
    "patience": 1,
    "depth": 1,
    "min_child_weight": 0,
    "l2": 0,
    "bins": 2,
    "categories": 0,
    "onehot": 1,
    "cat_threshold": 1,
    "members": 0,
    "threads": 0,
}

# Rows whose features are made at a time.
PIECE = 1 << 16


def gbdt(
    sizes: Layout,
    *,
    rounds: int = 1000,
    patience: int = 50,
    depth: int = 8,
    lr: float = 0.1,
    min_child_weight: float = 1.0,
    subsample: float = 1.0,
    colsample: float = 1.0,
    colsample_node: float = 1.0,
    l2: float = 1.0,
    bins: int = 256,
    categories: int = 10_000,
    onehot: int = 4,
    cat_threshold: int = 64,
    members: int = 32,
    ranks_alone: bool = False,
    threads: int = 0,
) -> Trees:
    """Gradient-boosted decision trees (XGBoost): trees are added until validation log loss stops falling."""
    given = dict(locals())
    for name, least in LEAST.items():
        if not given[name] >= least:
            raise ConfigError(f"model.{name} must be at least {least}, found {given[name]}")
    for name in ("lr", "subsample", "colsample", "colsample_node"):
        if not 0 < given[name] <= 1:
            raise ConfigError(f"model.{name} must be above 0 and at most 1, found {given[name]}")
    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": depth,
        "learning_rate": lr,
        "min_child_weight": min_child_weight,
        "subsample": subsample,
        "colsample_bytree": colsample,
        "colsample_bynode": colsample_node,
        "reg_lambda": l2,
        "max_bin": bins,
        "max_cat_to_onehot": onehot,
        "max_cat_threshold": cat_threshold,
        "nthread": threads,
    }
    return Trees(sizes, settings, rounds, patience, (categories, members, ranks_alone))


def threads_for(cells: int) -> int:
    """Threads for this many numbers, at most the cores or OMP_NUM_THREADS: those with little to do only wait."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    most = int(asked) if asked.isdecimal() and int(asked) else os.cpu_count() or 1
    return min(most, max(1, cells // THREAD_CELLS))


def _known(rows: Any) -> None:
    """Does nothing, in the place of a look at the columns of rows."""


class Trees:
    """Boosted trees over a layout; they can score after `boost` or `load`."""

    file = "trees.ubj.gz"
    reads_ranks = True

    def __init__(
        self, layout: Layout, settings: dict[str, Any], rounds: int, patience: int, reading: tuple[int, int, bool]
    ) -> None:
        self.layout, self.settings, self.rounds, self.patience = layout, settings, rounds, patience
        # Training always grows new trees, so that later ids need no special treatment.
        self.features = Features(replace(layout, first_sizes=()), *reading)
        self.xgboost = load_xgboost("model gbdt")
        self.booster: Any = None

    def boost(self, part: Part, valid: Part, seed: int) -> Iterator[NDArray[np.float32]]:
        """Adds a tree at a time, and yields the logits of the validation rows after each."""
        try:
            yield from self._boost(part, valid, seed)
        except self.xgboost.core.XGBoostError as error:
            found = str(error).strip().splitlines()[0]
            raise TrainingError(f"XGBoost failed: {found}; see `fieldwise models gbdt` for its settings") from None

    def _boost(self, part: Part, valid: Part, seed: int) -> Iterator[NDArray[np.float32]]:
        threads = self.settings["nthread"] or threads_for(part.rows * len(self.features.kinds))
        facts = {"feature_types": self.features.kinds, "enable_categorical": True, "nthread": threads}
        own = np.concatenate([np.arange(part.rows), part.rows_with_hidden])
        rows = self.xgboost.QuantileDMatrix(
            self._features(part, own),
            label=part.labels[own],
            weight=None if part.weights is None else part.weights[own],
            max_bin=self.settings["max_bin"],
            **facts,
        )
        # Not quantised: a hashed value may be larger than all of the training rows'.
        held = self.xgboost.DMatrix(self.features(valid.ids), **facts)
        self.booster = self.xgboost.Booster({**self.settings, "nthread": threads, "seed": seed}, [rows, held])
        for number in range(self.rounds):
            self.booster.update(rows, number)
            # The columns are known since the first round. To compare their names again takes as long as a small tree.
            self.booster._assign_dmatrix_features = _known
            yield self.booster.predict(held, output_margin=True, validate_features=False)

    def _features(self, part: Part, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The features of all rows, and of those after them as they are with values hidden.

        Trees see all rows at once, and none in another epoch: so that they lose nothing of what a known value tells,
        rows come as they are too. Made in pieces: there may be many times as many ids as features.
        """
        found = np.empty((len(rows), len(self.features.kinds)), dtype=np.float32)
        for first in range(0, len(rows), PIECE):
            own = rows[first : first + PIECE]
            whole = max(0, min(len(own), part.rows - first))
            found[first : first + whole] = self.features(np.asarray(part.ids[first : first + whole]))
            found[first + whole : first + len(own)] = self.features(part.shown(own[whole:]))
        return found

    def keep(self, rounds: int) -> None:
        """Drops the trees after the first `rounds`."""
        self.booster = self.booster[:rounds]

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self.booster.inplace_predict(self.features(ids), predict_type="margin")
        return scores

    @property
    def size(self) -> int:
        """The number of leaves, which are what the trees learn."""
        return sum(tree.count("leaf=") for tree in self.booster.get_dump())

    def to(self, device: Any) -> Trees:
        """Trees stay on the CPU."""
        return self

    def save(self, path: Path) -> None:
        save_booster(self.booster, path, self.features)

    @classmethod
    def saved(cls, folder: Path) -> Path | None:
        """The file of trees in a bundle's folder, which older versions did not pack."""
        files = folder / cls.file, folder / cls.file.removesuffix(".gz")
        return next((file for file in files if file.is_file()), None)

    def load(self, path: Path) -> None:
        path = self.saved(path.parent) or path
        self.booster = load_booster(path, self.features, "model gbdt", {"nthread": self.settings["nthread"]})
