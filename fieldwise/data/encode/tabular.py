"""Encoded rows as trees read them: ids (n, C) -> numbers (n, H) and their kinds.

- a number is its rank where the encoder gives one (kinds/ranks.py), else its bucket or its place between anchors, the
  mean of its ids; a missing one is NaN, for which each split learns a side;
- a category of a field with at most `categories` ids is one of XGBoost's own categories: a split sends a set of them
  left; in a larger field it is its id, which is its rank by frequency; where its words are numbers, it also is the
  rank of its number, in a column of its own, or with `ranks_alone` that only;
- a set is the count of its members, and a 0/1 column for each of its first `members` ids: missing, other, and then
  the most frequent ones (of a hashed field, just some).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError
from fieldwise.config.own_process import unloaded
from fieldwise.data.schema import MISSING, OTHER, PAD, Layout

ROWS = 1 << 16


@dataclass(frozen=True)
class Features:
    """The columns that trees read of rows with this layout, as the module's first lines say."""

    layout: Layout
    categories: int = 10_000
    members: int = 32
    ranks_alone: bool = False

    def __call__(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        found = np.empty((len(ids), len(self.kinds)), dtype=np.float32)
        # Ids may be files; they are read and converted some rows at a time.
        for start in range(0, len(ids), ROWS):
            part = slice(start, start + ROWS)
            self._fill(self._known(np.asarray(ids[part])), found[part])
        return found

    def _fill(self, ids: NDArray[np.int32], found: NDArray[np.float32]) -> None:
        ordered = frozenset(self.layout.ordered)
        ranks = {field: self.layout.id_columns + place for place, field in enumerate(self.layout.ranked)}
        place = first = 0
        for field, width in enumerate(self.layout.widths):
            own = ids[:, first : first + width]
            first += width
            rank = ids[:, ranks[field]] if field in ranks else None
            for column in self._columns(field, own, field in ordered, rank):
                found[:, place] = column
                place += 1

    def _columns(
        self, field: int, own: NDArray[np.int32], ordered: bool, rank: NDArray[np.int32] | None
    ) -> Iterator[NDArray[Any]]:
        """A field's ids (n, width) and its ranks (n,), if it has any -> its features, (n,) each."""
        if rank is not None:
            yield np.where(rank <= MISSING, np.nan, rank)
            if ordered or self.ranks_alone:
                return
        if ordered:
            used = own != PAD
            yield np.where(own[:, 0] == MISSING, np.nan, own.sum(axis=1, where=used) / used.sum(axis=1))
        elif own.shape[1] == 1:
            yield own[:, 0]
        else:
            yield from _set_columns(own, self._members(field))

    def _known(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ids that came to grown fields after the trees are `other` to them."""
        if not self.layout.first_sizes:
            return ids
        columns = self.layout.id_columns
        first = np.array([self.layout.first_sizes[field] for field in self.layout.without_ranks.column_fields])
        return np.hstack([np.where(ids[:, :columns] >= first, OTHER, ids[:, :columns]), ids[:, columns:]])

    @property
    def kinds(self) -> list[str]:
        """XGBoost's types of the features: c for categories, q for quantities, i for indicators."""
        return [kind for kind, _ in self.described]

    @property
    def categories_of(self) -> list[int]:
        """How many categories each feature has; 0 for quantities and indicators."""
        return [size if kind == "c" else 0 for kind, size in self.described]

    @property
    def described(self) -> list[tuple[str, int]]:
        """The type of each feature, and how many ids its field has."""
        found: list[tuple[str, int]] = []
        ordered, ranked = frozenset(self.layout.ordered), frozenset(self.layout.ranked)
        for field, size in enumerate(self.layout.first_sizes or self.layout.sizes):
            if field in ranked:
                found.append(("q", size))
                if field in ordered or self.ranks_alone:
                    continue
            if field not in ordered and self.layout.widths[field] > 1:
                found += [("q", size)] + [("i", size)] * self._members(field)
            else:
                kind = "q" if field in ordered or size > self.categories else "c"
                found.append((kind, size))
        return found

    def _members(self, field: int) -> int:
        return min(self.members, (self.layout.first_sizes or self.layout.sizes)[field])


def _set_columns(own: NDArray[np.int32], members: int) -> Iterator[NDArray[Any]]:
    """The count of a set's members, and whether it has each of the first few: ids (n, width) -> (n,) each."""
    yield (own > MISSING).sum(axis=1)
    for member in range(members):
        yield (own == member).any(axis=1)


def load_xgboost(purpose: str) -> Any:
    """XGBoost, or one line that says what needs it."""
    try:
        # XGBoost loads them for classes that no command uses; they take longer than it does itself.
        with unloaded("sklearn", "pandas"):
            import xgboost
    except ImportError:
        raise ConfigError(f"{purpose} needs XGBoost, which is not installed: pip install fieldwise[gbdt]") from None
    return xgboost
