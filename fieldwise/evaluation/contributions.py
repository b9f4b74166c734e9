"""Explains the logit of one row: the contribution of each field and of each pair of fields.

If the logit is a sum of terms of fields and pairs (LR, Poly-2 and the FM family), these terms are the contributions.
For other models (a DNN, trees) a field's contribution is the drop of the logit when the field is made missing, and a
pair's is the mixed second difference f(x) - f(x without i) - f(x without j) + f(x without both), the joint effect
beyond the single ones. These need not add up to the logit. With very many fields, only pairs of the strongest fields
are computed. pair_strength.py maps the pairs over many rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import MISSING, PAD, Layout
from fieldwise.evaluation.pair_strength import Logits, Swaps

EXACT = "the model's own terms: bias, fields and pairs add up to the logit"
OCCLUSION = (
    "occlusion: what the logit loses when a field is made missing, for pairs the mixed second difference; "
    "these need not add up to the logit"
)
# They make 780 pairs, each a row to score.
MOST_OCCLUDED = 40


@dataclass(frozen=True)
class Contribution:
    """The contribution of a field or a pair of fields to a row's logit."""

    fields: tuple[str, ...]
    logit: float


@dataclass(frozen=True)
class Explanation:
    """An explanation of a row's probability: contributions, the largest first.

    `exact`: bias and contributions add up to the logit before calibration. Otherwise `method` says how they were
    measured. `values` are the row's values as text.
    """

    probability: float
    logit: float
    bias: float
    values: dict[str, str]
    fields: tuple[Contribution, ...]
    pairs: tuple[Contribution, ...]
    exact: bool
    method: str


@dataclass(frozen=True)
class Terms:
    """A bias, and the terms of fields and pairs by their names."""

    bias: float
    fields: dict[str, float]
    pairs: dict[tuple[str, str], float]


def largest_first(terms: Iterable[tuple[tuple[str, ...], float]]) -> tuple[Contribution, ...]:
    ordered = sorted(terms, key=lambda item: -abs(item[1]))
    return tuple(Contribution(fields, term) for fields, term in ordered)


def exact_terms(names: Sequence[str], bias: float, fields: NDArray[Any], pairs: NDArray[Any]) -> Terms:
    """Terms (F,) and (P,) by the fields' names."""
    by_name = {name: float(term) for name, term in zip(names, fields, strict=True)}
    by_pair = dict(zip(itertools.combinations(names, 2), pairs.astype(float).tolist(), strict=True))
    return Terms(bias, by_name, by_pair)


def weighted(parts: Sequence[tuple[float, Terms]], shift: float) -> Terms:
    """The terms of a weighted sum of models; terms of the same field are added."""
    fields: dict[str, float] = {}
    pairs: dict[tuple[str, str], float] = {}
    for weight, terms in parts:
        for name, term in terms.fields.items():
            fields[name] = fields.get(name, 0.0) + weight * term
        for pair, term in terms.pairs.items():
            known = pair if pair in pairs or pair[::-1] not in pairs else pair[::-1]
            pairs[known] = pairs.get(known, 0.0) + weight * term
    return Terms(shift + sum(weight * terms.bias for weight, terms in parts), fields, pairs)


def missing_row(layout: Layout) -> NDArray[np.int32]:
    """The ids (1, C) of a row without a value in any field."""
    found = np.full((1, layout.columns), PAD, dtype=np.int32)
    found[0, np.cumsum([0, *layout.widths[:-1]])] = MISSING
    return found


class Scored(NamedTuple):
    """A row's ids (1, C) and logit (1,)."""

    ids: NDArray[np.int32]
    logit: NDArray[Any]


def occluded(logits: Logits, row: Scored, blank: Scored, layout: Layout, names: Sequence[str]) -> Terms:
    """Terms of a row by occlusion: a field that is left out gets its ids of `blank`, the row in which every field is
    missing, whose logit is the bias. Pairs are those of the strongest fields."""
    swaps = Swaps(logits, row.ids, row.logit, blank.ids, layout)
    lost = swaps.plain[0] - swaps.single[0]
    most = np.sort(np.argsort(-np.abs(lost), kind="stable")[:MOST_OCCLUDED])
    first, second = (most[places] for places in np.triu_indices(len(most), k=1))
    together = np.zeros(len(first))
    mixed, pair = swaps.mixed(first, second)
    together[pair] = mixed
    by_pair = {(names[i], names[j]): float(term) for i, j, term in zip(first, second, together, strict=True)}
    return Terms(float(blank.logit[0]), dict(zip(names, lost.tolist(), strict=True)), by_pair)
