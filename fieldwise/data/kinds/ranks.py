"""Ranks: the finer code by which trees read a number, or a category whose words are numbers.

Networks have a vector for each id and want few; trees cut a number anywhere. They know its order alone, so that a rank
among many buckets is to them the number itself. A category keeps its ids beside the rank: it may be read both ways.
"""

from __future__ import annotations

import numpy as np

from fieldwise.data.kinds.buckets import Floats, Histogram, quantile_thresholds
from fieldwise.data.kinds.category import CategoryField, WordCode
from fieldwise.data.kinds.counted import Counted
from fieldwise.data.kinds.kind import Code, Field
from fieldwise.data.kinds.number import BucketCode, NumberField
from fieldwise.data.kinds.samples import plain_numbers

# Buckets of ranks: several times as many as trees cut a number into (XGBoost's max_bin), and few beside a vocabulary.
RANKS = 1024
# A category of so few values has no need of an order: trees send any of them to either side.
FEW = 10


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
    if not isinstance(field, CategoryField) or not isinstance(code, WordCode) or len(code.vocabulary) <= FEW:
        return None
    counts = {text: n for text, n in column.texts if text in code.vocabulary}
    numbers = plain_numbers(list(counts))
    if numbers is None:
        return None
    values, rows = np.array(numbers), np.array(list(counts.values()), dtype=np.int64)
    order = np.argsort(values)[: int(np.isfinite(values).sum())]
    distinct, places = np.unique(values[order], return_inverse=True)
    counted = np.bincount(places, rows[order]).astype(np.int64)
    return Histogram(distinct, counted, np.zeros_like(counted)) if len(distinct) > FEW else None
