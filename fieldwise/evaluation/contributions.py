"""Why a row has its logit: what each field, and each two fields together, add to it.

Where the logit is a sum of terms of fields and pairs (LR, Poly-2 and the FM family), these are the terms. Elsewhere
(a DNN, trees) a field's contribution is what the logit loses when the field is made missing, and that of two fields is
the mixed second difference f(x) - f(x without i) - f(x without j) + f(x without both): what they do together beyond
each by itself. Such contributions need not add up to the logit. Of very many fields, only pairs of those that matter
most by themselves are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import MISSING, PAD, Layout

Floats = NDArray[np.float64]
EXACT = "the model's own terms: bias, fields and pairs add up to the logit"
OCCLUSION = (
    "occlusion: what the logit loses when a field is made missing, for pairs the mixed second difference; "
    "these need not add up to the logit"
)


@dataclass(frozen=True)
class Terms:
    """A bias, and by names what fields and pairs of fields add to it."""

    bias: float
    fields: dict[str, float]
    pairs: dict[tuple[str, str], float]


def exact_terms(names: Sequence[str], bias: float, fields: NDArray[Any], pairs: NDArray[Any]) -> Terms:
    """Terms (F,) and (P,) by the fields' names."""
    by_name = {name: float(term) for name, term in zip(names, fields, strict=True)}
    by_pair = dict(zip(itertools.combinations(names, 2), pairs.astype(float).tolist(), strict=True))
    return Terms(bias, by_name, by_pair)


def weighted(parts: Sequence[tuple[float, Terms]], shift: float) -> Terms:
    """The terms of a weighted sum of models, fields of one name together."""
    fields: dict[str, float] = {}
    pairs: dict[tuple[str, str], float] = {}
    for weight, terms in parts:
        for name, term in terms.fields.items():
            fields[name] = fields.get(name, 0.0) + weight * term
        for pair, term in terms.pairs.items():
            known = pair if pair in pairs or pair[::-1] not in pairs else pair[::-1]
            pairs[known] = pairs.get(known, 0.0) + weight * term
    return Terms(shift + sum(weight * terms.bias for weight, terms in parts), fields, pairs)


# 780 pairs, and as many rows to score.
MOST_OCCLUDED = 40
# The fields to leave out of a row, once for each tuple of names -> logits (n,).
Without = Callable[[list[tuple[str, ...]]], Floats]


def occluded(names: Sequence[str], without: Without) -> Terms:
    """Terms by leaving fields out, pairs among the fields that matter most; the bias is the logit without any field."""
    whole, nothing, *rest = without([(), tuple(names), *((name,) for name in names)]).tolist()
    alone = dict(zip(names, rest, strict=True))
    most = set(sorted(names, key=lambda name: -abs(whole - alone[name]))[:MOST_OCCLUDED])
    pairs = list(itertools.combinations([name for name in names if name in most], 2))
    both = zip(pairs, without(list(pairs)).tolist() if pairs else (), strict=True)
    mixed = {pair: whole - alone[pair[0]] - alone[pair[1]] + logit for pair, logit in both}
    return Terms(nothing, {name: whole - logit for name, logit in alone.items()}, mixed)


def left_out(
    ids: NDArray[np.int32], layout: Layout, names: Sequence[str], asked: list[tuple[str, ...]]
) -> NDArray[np.int32]:
    """A row's ids (1, C) with the fields of each question missing, (n, C)."""
    starts = np.cumsum([0, *layout.widths])
    places = {name: field for field, name in enumerate(names)}
    found = np.repeat(ids, len(asked), axis=0)
    for row, leave in enumerate(asked):
        for name in leave:
            if name in places:
                first, end = starts[places[name]], starts[places[name] + 1]
                found[row, first:end] = PAD
                found[row, first] = MISSING
    return found
