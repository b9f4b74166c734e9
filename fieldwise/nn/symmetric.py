"""Boosted symmetric trees: all nodes of a level ask the same, so that a tree of depth d asks d questions.

So few questions fit chance less than a tree whose nodes each ask their own, above all on few rows. As CatBoost grows
them (Prokhorenkova et al., 2018): a split is chosen by the cosine of the slopes with what the leaves would add, and by
noise that fades as the trees add up; leaves take several Newton steps. Rates of categories are fields of their own
here (data/encode/rates.py), so there are no other statistics of labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError, ConfigError
from fieldwise.data.dataset import Part
from fieldwise.data.schema import Layout
from fieldwise.nn.symmetric_growth import Binned, Growing, Growth, Scored, Splits
from fieldwise.nn.trees import Trees, check_options, threads_for

LEAST = {
    "rounds": 1,
    "patience": 1,
    "depth": 1,
    "l2": 0,
    "random_strength": 0,
    "bins": 2,
    "categories": 0,
    "onehot": 0,
    "members": 0,
    "threads": 0,
}
# Bins are numbered in a byte; each level of a tree doubles the sums to be kept.
MOST = {"depth": 12, "bins": 255, "onehot": 255}
# Splits of all rows that are worth the compiled loops, which take a third of a second to load and are not much faster
# than numpy; and splits of the rows that numpy takes at a time.
MANY, PIECE = 20_000_000, 1_000_000


def symmetric(
    sizes: Layout,
    *,
    rounds: int = 1000,
    patience: int = 50,
    depth: int = 6,
    lr: float = 0.05,
    subsample: float = 0.8,
    l2: float = 3.0,
    random_strength: float = 1.0,
    bins: int = 128,
    categories: int = 10_000,
    onehot: int = 100,
    members: int = 32,
    ranks_alone: bool = False,
    threads: int = 0,
) -> Symmetric:
    """Gradient-boosted symmetric trees: all nodes of a level ask the same, which fits few rows better (as CatBoost)."""
    given = dict(locals())
    check_options(given, LEAST, ("lr", "subsample"))
    for name, most in MOST.items():
        if given[name] > most:
            raise ConfigError(f"model.{name} must be at most {most}, found {given[name]}")
    growth = Growth(depth, lr, subsample, l2, random_strength, bins, onehot)
    return Symmetric(sizes, growth, rounds, patience, (categories, members, ranks_alone), threads)


class Symmetric(Trees):
    """Symmetric trees and the logit before the first of them."""

    file = "symmetric.safetensors"

    def __init__(
        self,
        layout: Layout,
        growth: Growth,
        rounds: int,
        patience: int,
        reading: tuple[int, int, bool],
        threads: int,
    ) -> None:
        super().__init__(layout, growth.lr, rounds, patience, reading, threads)
        self.growth, self.base = growth, 0.0
        self.grown: list[Splits] = []
        self._all: Splits | None = None

    def boost(self, part: Part, valid: Part, seed: int) -> Iterator[NDArray[np.float32]]:
        features, rows = self._trained_on(part)
        weights = np.ones(len(rows)) if part.weights is None else np.asarray(part.weights, dtype=np.float64)[rows]
        threads = self.threads or threads_for(features.size)
        binned = Binned(features, self.features.described, self.growth)
        growing = Growing(binned, np.asarray(part.labels)[rows], weights, self.growth, seed, threads)
        held = Scored(binned(self.features(valid.ids)), growing.base)
        self.base, self.grown, self._all = growing.base, [], None
        for _ in range(self.rounds):
            asked, values = growing.tree()
            self.grown.append(binned.splits(asked, values))
            yield held.after(asked, binned.single, values)

    def keep(self, rounds: int) -> None:
        self.grown, self._all = self.grown[:rounds], None

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        rows, splits = self.features(ids), self.splits.columns.size
        found = np.full(len(rows), self.base)
        if len(rows) * splits > MANY:
            from fieldwise.nn.symmetric_loops import scores

            scores(rows, *self.splits, found)
        elif splits:
            step = max(1, PIECE // splits)
            for first in range(0, len(rows), step):
                found[first : first + step] = self._scored(rows[first : first + step])
        return found.astype(np.float32)

    def _scored(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """The logits (n,) of rows (n, H), as the loops compute them."""
        columns, bounds, single, values = self.splits
        picked = rows[:, columns]
        right = np.where(single, picked == bounds, picked > bounds)
        leaves = right @ (1 << np.arange(columns.shape[1]))
        added = values[np.arange(len(values)), leaves].astype(np.float64)
        # One after the other, as the loop does: numpy's sum takes them in another order.
        base = np.full((len(rows), 1), self.base)
        return np.asarray(np.cumsum(np.hstack([base, added]), axis=1)[:, -1])

    @property
    def splits(self) -> Splits:
        """All trees."""
        if self._all is None:
            depth = self.growth.depth
            nothing = Splits(*(np.empty((0, width)) for width in (depth, depth, depth, 2**depth)))
            stacked = [np.stack(own) for own in zip(*self.grown, strict=True)] or nothing
            kinds = (np.int32, np.float32, np.bool_, np.float32)
            self._all = Splits(*(np.ascontiguousarray(own, kind) for own, kind in zip(stacked, kinds, strict=True)))
        return self._all

    @property
    def size(self) -> int:
        return int(self.splits.values.size)

    def save(self, path: Path) -> None:
        from safetensors.numpy import save

        arrays = dict(self.splits._asdict())
        path.write_bytes(save({**arrays, "base": np.array([self.base])}))

    def load(self, path: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = load(path.read_bytes())
            base, splits = arrays.pop("base"), Splits(**arrays)
            self._check(base, splits)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise BundleError(f"the trees are damaged: {str(error).splitlines()[0][:300]} ({path})") from None
        self.base, self._all = float(base[0]), splits
        self.grown = [Splits(*own) for own in zip(*splits, strict=True)]

    def _check(self, base: NDArray[Any], splits: Splits) -> None:
        """Refuses what would read beside a row or a leaf, or add what is no number."""
        trees, depth, columns = len(splits.columns), self.growth.depth, len(self.features.kinds)
        kinds = {"columns": np.int32, "bounds": np.float32, "single": np.bool_, "values": np.float32}
        for name, own in splits._asdict().items():
            shape = (trees, 2**depth if name == "values" else depth)
            if own.dtype != kinds[name] or own.shape != shape:
                raise ValueError(f"{name} must be {shape} of {np.dtype(kinds[name]).name}")
        if ((splits.columns < 0) | (splits.columns >= columns)).any():
            raise ValueError(f"columns must be below {columns}, those of a row")
        if base.shape != (1,) or not np.isfinite(base).all() or not np.isfinite(splits.values).all():
            raise ValueError("leaves and the logit before them must be finite numbers")
