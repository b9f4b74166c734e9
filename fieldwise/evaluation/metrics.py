"""Metrics of probabilities: AUC, log loss, relative information gain, calibration; exact, weighted, mergeable.

A `Ranking` collects rows in pieces or from several workers; `measure` computes all metrics from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.evaluation.ranking import Ranking

Floats = NDArray[np.float64]
# Probabilities are clipped to [CLIP, 1-CLIP] before a logarithm: a certain but wrong prediction costs 16, not infinity.
CLIP = 1e-7
# The number of bins in which predicted and observed rates are compared.
BINS = 15
# The most values of a column whose metrics are listed.
MOST_VALUES = 50


def sigmoid(logits: NDArray[Any]) -> Floats:
    """1 / (1 + exp(-x)) without overflow, in float64."""
    logits = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1 / (1 + small), small / (1 + small)))


def auc(labels: NDArray[Any], scores: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The probability that a positive row scores above a negative one, ties counting half; NaN with only one class.

    >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    return Ranking().add(labels, scores, weights).auc()


def losses(labels: Any, probabilities: Any) -> Floats:
    """-log of the probability of the observed label, for each row."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), CLIP, 1 - CLIP)
    return np.asarray(-np.where(np.asarray(labels) > 0, np.log(p), np.log1p(-p)))


def log_loss(labels: NDArray[Any], probabilities: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The mean of -log of the probability of the observed label."""
    return float(np.average(losses(labels, probabilities), weights=weights))


def base_loss(labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The log loss of predicting the positive rate of these rows for each of them."""
    rate = float(np.average(labels, weights=weights))
    return float(rate * losses(1, rate) + (1 - rate) * losses(0, rate))


def standard_errors(
    labels: NDArray[Any], probabilities: NDArray[Any], weights: NDArray[Any] | None = None
) -> dict[str, float]:
    """The standard errors of log loss and AUC (DeLong's) for rows drawn one by one; none where only one class is.

    >>> found = standard_errors(np.array([0, 1] * 50), np.array([0.2, 0.8, 0.6, 0.4] * 25))
    >>> round(found["auc"], 4), round(found["log_loss"], 4)
    (0.05, 0.0347)
    """
    positive, p = np.asarray(labels) > 0, np.asarray(probabilities, dtype=np.float64)
    w = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not w[positive].any() or not w[~positive].any():
        return {}
    sides = [_sorted(p[one], w[one], weights is None) for one in (positive, ~positive)]
    better = [_share_below(own[0], *other) for own, other in (sides, sides[::-1])]
    areas = [_error_of_mean(share, own) for share, (_, own) in zip(better, sides, strict=True)]
    return {"auc": float(np.hypot(areas[0], areas[1])), "log_loss": _error_of_mean(losses(labels, p), w)}


def _sorted(values: Floats, weights: Floats, equal: bool) -> tuple[Floats, Floats]:
    """Rising values with their weights; to sort values alone, where weights are equal, is several times as fast."""
    if equal:
        return np.sort(values), weights
    order = np.argsort(values)
    return values[order], weights[order]


def _share_below(values: Floats, others: Floats, weights: Floats) -> Floats:
    """The share of the others below each value, ties half; both rise, which keeps the search in the cache."""
    total = np.concatenate([[0.0], np.cumsum(weights)])
    below = [total[np.searchsorted(others, values, side)] for side in ("left", "right")]
    return np.asarray((below[0] + below[1]) / (2 * total[-1]))


def _error_of_mean(values: Floats, weights: Floats) -> float:
    mean = np.average(values, weights=weights)
    return float(np.sqrt((weights**2 * (values - mean) ** 2).sum()) / weights.sum())


def evaluate(
    labels: NDArray[Any], probabilities: NDArray[Any], weights: NDArray[Any] | None = None, curve: bool = True
) -> dict[str, Any]:
    """All metrics of some rows, as `measure` describes them."""
    return measure(Ranking().add(labels, probabilities, weights), curve)


def measure(rows: Ranking, curve: bool = True) -> dict[str, Any]:
    """All metrics of rows ranked by their probabilities; without the `curve` those that take no bins.

    rig: 1 - log loss / log loss of the base rate; calibration: mean predicted / observed; ece: mean distance
    of predicted and observed rates over bins of equal weight. A metric that is not defined on these rows is None.
    """
    weight, positive, predicted = rows.sums()
    if not weight:
        raise DataError(f"there is nothing to measure: found {rows.rows} rows with a total weight of 0")
    _check_probabilities(rows)
    rate = positive / weight
    loss = rows.positive.sum(lambda p: losses(1, p)) + rows.negative.sum(lambda p: losses(0, p))
    base = positive * losses(1, rate) + (weight - positive) * losses(0, rate)
    both = 0 < rate < 1
    found = {
        "auc": rows.auc() if both else None,
        "log_loss": loss / weight,
        "rig": float(1 - loss / base) if both else None,
        "calibration": predicted / positive if rate else None,
        "rows": rows.rows,
        "positive_rate": rate,
    }
    if not curve:
        return found
    bins = reliability(rows)
    gaps = np.abs(np.subtract(bins["predicted"], bins["observed"]))
    return found | {"ece": float(np.average(gaps, weights=bins["weight"])), "reliability": bins}


def _check_probabilities(rows: Ranking) -> None:
    """Refuses scores outside of [0, 1]. They are sorted, NaN last, so the first and the last of each class suffice."""
    for side in (rows.positive, rows.negative):
        for score in side.values[[0, -1]] if len(side.values) else ():
            if not 0 <= score <= 1:
                raise DataError(f"probabilities must be numbers from 0 to 1, found {score:g}; logits need a sigmoid")


def reliability(rows: Ranking, bins: int = BINS) -> dict[str, list[float]]:
    """Mean predicted and observed rates and the weight of bins of equal weight, lowest predictions first."""
    bounds = _bounds(rows.total, bins)
    cumulated = np.array([(0, 0, 0), *rows.lowest(bounds), rows.sums()], dtype=np.float64)
    weight, observed, predicted = np.diff(cumulated, axis=0).T
    kept = weight > 0
    return {
        "predicted": (predicted[kept] / weight[kept]).tolist(),
        "observed": (observed[kept] / weight[kept]).tolist(),
        "weight": weight[kept].tolist(),
    }


def _bounds(total: float | int, bins: int) -> list[float]:
    """The total weight below each boundary of bins. Rows of weight 1 are not divided: the first bins get one more."""
    if isinstance(total, int):
        size, more = divmod(total, bins)
        return [number * size + min(number, more) for number in range(1, bins)]
    return [total * number / bins for number in range(1, bins)]


def grouped_auc(
    labels: NDArray[Any], scores: NDArray[Any], groups: NDArray[Any], weights: NDArray[Any] | None = None
) -> dict[str, Any]:
    """The mean AUC within the groups that have both classes, weighted by their rows (by the weights of these).

    `auc` is None without such a group; `rows_covered` is the share of the rows in the groups used.

    >>> grouped_auc(np.array([0, 1, 1, 0, 1]), np.array([0.1, 0.2, 0.3, 0.4, 0.9]), np.array([1, 1, 2, 2, 3]))
    {'auc': 0.5, 'groups': 3, 'groups_used': 2, 'rows_covered': 0.8}
    """
    names, group = np.unique(groups, return_inverse=True)
    distinct, rank = np.unique(scores, return_inverse=True)
    # Keys rise by group, then by score, so one ranking holds all groups; a group's floor is below all its keys.
    floor = group * (len(distinct) + 1)
    keys = floor + rank + 1
    positive = np.asarray(labels) > 0
    weight = np.ones(len(keys)) if weights is None else np.asarray(weights, dtype=np.float64)
    negative = Ranking().add(labels, keys, weights).negative
    twice = negative.below(keys) + negative.up_to(keys) - 2 * negative.below(floor)

    def by_group(values: NDArray[Any]) -> Floats:
        return np.bincount(group, weights=values, minlength=len(names)).astype(np.float64)

    size = by_group(weight)
    pairs = by_group(weight * positive) * by_group(weight * ~positive)
    used = pairs > 0
    areas = by_group(twice * weight * positive)[used] / (2 * pairs[used])
    return {
        "auc": float(np.average(areas, weights=size[used])) if used.any() else None,
        "groups": len(names),
        "groups_used": int(used.sum()),
        "rows_covered": float(used[group].mean()),
    }


def evaluate_by(
    labels: NDArray[Any], probabilities: NDArray[Any], groups: NDArray[Any], weights: NDArray[Any] | None = None
) -> dict[str, Any]:
    """The grouped AUC and, as `values`, the metrics of each group; None if there are more than MOST_VALUES.

    `groups` (n,) are whole numbers.
    """
    found: dict[str, Any] = {**grouped_auc(labels, probabilities, groups, weights), "values": None}
    if found["groups"] <= MOST_VALUES:
        found["values"] = []
        for group in np.unique(groups).tolist():
            rows = groups == group
            ranking = Ranking().add(labels[rows], probabilities[rows], None if weights is None else weights[rows])
            own = measure(ranking) if ranking.total else {"rows": ranking.rows}
            kept = ("rows", "positive_rate", "auc", "log_loss", "calibration")
            found["values"].append({"group": group, **{key: own.get(key) for key in kept}})
    return found
