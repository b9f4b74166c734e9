"""Columns that tell the label by themselves: most often they were written after the event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.kinds.kind import Code, id_columns

# The training rows to look at, and how many of each label they must have.
FIRST_ROWS, LEAST = 200_000, 20
# The AUC of a column alone above which it is named.
TELLING = 0.999
# Rows of the overall rate that are added to the rate of an id.
STRENGTH = 1.0


@dataclass(frozen=True)
class Giveaway:
    """A column, and how well its values alone tell the label."""

    column: str
    auc: float

    @property
    def warning(self) -> str:
        """The line for the user."""
        return (
            f"warning: column '{self.column}' alone tells the label (AUC {self.auc:.4f}). If it is known only after "
            f"the event, a model that has it is worth nothing: --drop {self.column}"
        )


def find_giveaways(train: Path, codes: Sequence[Code]) -> list[Giveaway]:
    """The columns that alone tell the labels of encoded training rows; sets are not looked at.

    Rates of ids are taken from every other row and read on the rest, so that an id that is different in each row tells
    nothing.
    """
    ids, labels = (np.load(train / name, mmap_mode="r", allow_pickle=False) for name in ("ids.npy", "labels.npy"))
    positive = np.asarray(labels[:FIRST_ROWS]) > 0
    if min(positive.sum(), (~positive).sum()) < LEAST:
        return []
    rows, ranks = np.asarray(ids[:FIRST_ROWS]), _ranks(train, codes)
    found: dict[str, float] = {}
    for code, place in zip(codes, id_columns(codes), strict=True):
        if code.width == 1 or code.field.ordered:
            area = _alone(rows[:, place.start], positive, code.size)
            if code.field.name in ranks:
                area = max(area, _in_order(ranks[code.field.name], positive))
            found[code.field.column] = max(area, found.get(code.field.column, 0.0))
    return [Giveaway(column, area) for column, area in found.items() if area > TELLING]


def _ranks(train: Path, codes: Sequence[Code]) -> dict[str, NDArray[np.int64]]:
    """The ranks of the first rows, by field; a bucket may have rows on both sides of where the label changes."""
    named = [code.field.name for code in codes if code.ranks]
    if not named:
        return {}
    ranks = np.load(train / "ranks.npy", mmap_mode="r", allow_pickle=False)[:FIRST_ROWS]
    return {name: np.asarray(ranks[:, place], dtype=np.int64) for place, name in enumerate(named)}


def _in_order(ranks: NDArray[np.int64], positive: NDArray[np.bool_]) -> float:
    """The AUC of ranks themselves, whichever way they tell."""
    negative, positives = (np.bincount(ranks[own], minlength=int(ranks.max()) + 1) for own in (~positive, positive))
    area = float(positives @ (np.cumsum(negative) - negative / 2) / (positives.sum() * negative.sum()))
    return max(area, 1 - area)


def _alone(ids: NDArray[np.int32], positive: NDArray[np.bool_], size: int) -> float:
    """The AUC of each id's rate of positives, the lower one of both halves."""
    half = np.arange(len(ids)) % 2
    counts = np.bincount((ids * 2 + half) * 2 + positive, minlength=4 * size).reshape(size, 2, 2)
    return min(_held_out(counts[:, half], counts[:, 1 - half]) for half in (0, 1))


def _held_out(fitted: NDArray[np.int64], held: NDArray[np.int64]) -> float:
    """The AUC of rates from negatives and positives (n, 2) of each id, among other ones."""
    base = fitted[:, 1].sum() / max(1, fitted.sum())
    rates = (fitted[:, 1] + STRENGTH * base) / (fitted.sum(axis=1) + STRENGTH)
    # Ids of one rate are ties.
    values, places = np.unique(rates, return_inverse=True)
    negative, positive = (np.bincount(places, weights=of, minlength=len(values)) for of in held.T)
    if not (negative.sum() and positive.sum()):
        return 0.5
    below = np.cumsum(negative) - negative / 2
    return float(positive @ below / (positive.sum() * negative.sum()))
