"""Ranks: the finer code by which trees read a number, or a category whose words are numbers.

Networks have a vector for each id and want few; trees cut a number anywhere. They know its order alone, so that a rank
among many buckets is to them the number itself. A category keeps its ids beside the rank: it may be read both ways. It
has a rank if its values are few, such as a count of calls, if its order tells of the labels, or if most of its values
are too rare for an id: of a name that is a number the order means nothing, and a new one would pass for its neighbour.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.kinds.buckets import Floats, Histogram, quantile_thresholds
from fieldwise.data.kinds.category import CategoryField, WordCode
from fieldwise.data.kinds.counted import Counted
from fieldwise.data.kinds.kind import Code, Field
from fieldwise.data.kinds.number import FEW_VALUES, BucketCode, NumberField
from fieldwise.data.kinds.samples import plain_numbers

# Buckets of ranks: several times as many as trees cut a number into (XGBoost's max_bin), and few beside a vocabulary.
RANKS = 1024
# Stretches of so few values say nothing of an order.
FEW = 10
# How many times the variance between single values that between stretches of them must be; and of how many stretches.
ORDERED, STRETCHES = 5.0, 32


def fitted(field: Field, column: Counted) -> Code:
    """The code of a field fitted on training rows, with ranks where they say more than its ids."""
    code = field.fit(column)
    seen = _numbers(code, column)
    if seen is not None:
        code.ranks = rank_code(field, quantile_thresholds(seen, RANKS))
    return code


def rank_code(field: Field, thresholds: Floats) -> Code | None:
    """The code of ranks with these bounds; none without any."""
    return BucketCode(NumberField(field.name), thresholds) if len(thresholds) else None


def _numbers(code: Code, column: Counted) -> Histogram | None:
    """The numbers to be ranked. Bounds that a schema gives, by words or by counts, are taken at their word."""
    field = code.field
    if isinstance(field, NumberField) and field.buckets in ("quantile", "tree"):
        seen = column.histogram
        return seen if len(seen.values) > len(code.state["thresholds"]) + 1 else None
    # One split has all that two values can say.
    if not isinstance(field, CategoryField) or not isinstance(code, WordCode) or len(code.vocabulary) <= 2:
        return None
    if plain_numbers(code.texts) is None:
        return None
    seen = column.histogram
    few = len(seen.values) <= FEW_VALUES
    rare = 2 * len(seen.values) > seen.counts.sum()
    return seen if few or rare or order_tells(seen) > ORDERED else None


def order_tells(seen: Histogram) -> float:
    """How much more the rates of stretches of values differ than those of the values in a stretch: an F statistic.

    By Pearson's statistics, each 1 for what chance alone does; values that differ by less than chance count as chance.
    """
    if len(seen.values) <= FEW:
        return 0.0
    bounds = quantile_thresholds(seen, min(STRETCHES, len(seen.values) // 4))
    stretch = np.searchsorted(bounds, seen.values)
    rows, positives = np.bincount(stretch, seen.counts), np.bincount(stretch, seen.positives)
    base, rates = positives.sum() / rows.sum(), (positives / rows)[stretch]
    between = _pearson(positives, rows, np.full(len(rows), base)) / max(1, len(rows) - 1)
    within = _pearson(seen.positives, seen.counts, rates) / max(1, len(seen.values) - len(rows))
    return between / max(1.0, within)


def _pearson(positives: NDArray[Any], rows: NDArray[Any], rates: NDArray[Any]) -> float:
    """The sum of squared deviations from rates, in units of their variance; rates of 0 and 1 have none."""
    spread = rows * rates * (1 - rates)
    known = spread > 0
    return float((((positives - rows * rates)[known]) ** 2 / spread[known]).sum())
