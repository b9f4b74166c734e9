"""Boosted trees with the interface of the networks, ids (n, C) -> logits (n,); and GBDT by XGBoost.

Trees read the ids of the same encoder, so that an unseen value is `other` and never fails; data/encode/tabular.py
says how. All training rows are held in memory as float32.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

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
) -> Boosted:
    """Gradient-boosted decision trees (XGBoost): trees are added until validation log loss stops falling."""
    check_options(dict(locals()), LEAST, ("lr", "subsample", "colsample", "colsample_node"))
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
    return Boosted(sizes, settings, rounds, patience, (categories, members, ranks_alone))


def check_options(given: Mapping[str, Any], least: Mapping[str, float], shares: Sequence[str]) -> None:
    """Refuses options below their least value, and shares that are not above 0 and at most 1."""
    for name, bound in least.items():
        if not given[name] >= bound:
            raise ConfigError(f"model.{name} must be at least {bound}, found {given[name]}")
    for name in shares:
        if not 0 < given[name] <= 1:
            raise ConfigError(f"model.{name} must be above 0 and at most 1, found {given[name]}")


def threads_for(cells: int) -> int:
    """Threads for this many numbers, at most the cores or OMP_NUM_THREADS: those with little to do only wait."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    most = int(asked) if asked.isdecimal() and int(asked) else os.cpu_count() or 1
    return min(most, max(1, cells // THREAD_CELLS))


def _known(rows: Any) -> None:
    """Does nothing, in the place of a look at the columns of rows."""


class Trees(ABC):
    """Boosted trees over a layout; they can score after `boost` or `load`."""

    file: str
    reads_ranks = True

    def __init__(
        self, layout: Layout, lr: float, rounds: int, patience: int, reading: tuple[int, int, bool], threads: int
    ) -> None:
        self.layout, self.lr, self.rounds, self.patience, self.threads = layout, lr, rounds, patience, threads
        # Training always grows new trees, so that later ids need no special treatment.
        self.features = Features(replace(layout, first_sizes=()), *reading)

    @abstractmethod
    def boost(self, part: Part, valid: Part, seed: int) -> Iterator[NDArray[np.float32]]:
        """Adds a tree at a time, and yields the logits of the validation rows after each."""

    @abstractmethod
    def keep(self, rounds: int) -> None:
        """Drops the trees after the first `rounds`."""

    @abstractmethod
    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Encoded rows (n, C) -> logits (n,)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of leaves, which are what the trees learn."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Writes the trees into a file."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Reads the trees of a file, which may come from a stranger."""

    def to(self, device: Any) -> Self:
        """Trees stay on the CPU."""
        return self

    def _trained_on(self, part: Part) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The features of all rows, and of those after them as they are with values hidden; and which rows these are.

        Trees see all rows at once, and none in another epoch: so that they lose nothing of what a known value tells,
        rows come as they are too. Made in pieces: there may be many times as many ids as features.
        """
        rows = np.concatenate([np.arange(part.rows), part.rows_with_hidden])
        found = np.empty((len(rows), len(self.features.kinds)), dtype=np.float32)
        for first in range(0, len(rows), PIECE):
            own = rows[first : first + PIECE]
            whole = max(0, min(len(own), part.rows - first))
            found[first : first + whole] = self.features(np.asarray(part.ids[first : first + whole]))
            found[first + whole : first + len(own)] = self.features(part.shown(own[whole:]))
        return found, rows


class Boosted(Trees):
    """Trees by XGBoost."""

    file = "trees.ubj.gz"

    def __init__(
        self, layout: Layout, settings: dict[str, Any], rounds: int, patience: int, reading: tuple[int, int, bool]
    ) -> None:
        super().__init__(layout, settings["learning_rate"], rounds, patience, reading, settings["nthread"])
        self.settings = settings
        self.xgboost = load_xgboost("model gbdt")
        self.booster: Any = None

    def boost(self, part: Part, valid: Part, seed: int) -> Iterator[NDArray[np.float32]]:
        try:
            yield from self._boost(part, valid, seed)
        except self.xgboost.core.XGBoostError as error:
            found = str(error).strip().splitlines()[0]
            raise TrainingError(f"XGBoost failed: {found}; see `fieldwise models gbdt` for its settings") from None

    def _boost(self, part: Part, valid: Part, seed: int) -> Iterator[NDArray[np.float32]]:
        threads = self.threads or threads_for(part.rows * len(self.features.kinds))
        facts = {"feature_types": self.features.kinds, "enable_categorical": True, "nthread": threads}
        features, own = self._trained_on(part)
        rows = self.xgboost.QuantileDMatrix(
            features,
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

    def keep(self, rounds: int) -> None:
        self.booster = self.booster[:rounds]

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = self.booster.inplace_predict(self.features(ids), predict_type="margin")
        return scores

    @property
    def size(self) -> int:
        return sum(tree.count("leaf=") for tree in self.booster.get_dump())

    def save(self, path: Path) -> None:
        save_booster(self.booster, path, self.features)

    def load(self, path: Path) -> None:
        # Older versions did not pack them.
        path = path if path.is_file() else path.with_suffix("")
        self.booster = load_booster(path, self.features, "model gbdt", {"nthread": self.settings["nthread"]})
