"""How good are probabilities: AUC, log loss, relative information gain, calibration; exact, weighted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Probabilities are clipped to [CLIP, 1-CLIP] before a logarithm, so that one wrong certainty costs 16, not infinity.
CLIP = 1e-7


def sigmoid(logits: NDArray[Any]) -> Floats:
    """1 / (1 + exp(-x)) without overflow, in float64."""
    logits = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1 / (1 + small), small / (1 + small)))


def auc(labels: NDArray[Any], scores: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The chance that a positive row scores above a negative one, ties counting half; NaN with one class alone.

    >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    order = np.argsort(scores, kind="stable")
    scores = np.asarray(scores)[order]
    positive = np.asarray(labels, dtype=np.float64)[order]
    negative = 1 - positive
    if weights is not None:
        positive, negative = positive * weights[order], negative * weights[order]
    if not positive.sum() or not negative.sum():
        return float("nan")
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
    positive, negative = np.add.reduceat(positive, starts), np.add.reduceat(negative, starts)
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))


def log_loss(labels: NDArray[Any], probabilities: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """Mean of -log of the probability given to what happened."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), CLIP, 1 - CLIP)
    return float(np.average(-np.where(np.asarray(labels) > 0, np.log(p), np.log1p(-p)), weights=weights))


def reliability(
    labels: NDArray[Any], probabilities: NDArray[Any], weights: NDArray[Any] | None = None, bins: int = 15
) -> dict[str, list[float]]:
    """Mean predicted and observed rates and the weight of bins of equal row count, lowest predictions first."""
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    w = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=np.float64)
    groups = [g for g in np.array_split(np.argsort(p, kind="stable"), bins) if len(g) and w[g].sum()]
    return {
        "predicted": [float(np.average(p[g], weights=w[g])) for g in groups],
        "observed": [float(np.average(y[g], weights=w[g])) for g in groups],
        "weight": [float(w[g].sum()) for g in groups],
    }


def evaluate(labels: NDArray[Any], probabilities: NDArray[Any], weights: NDArray[Any] | None = None) -> dict[str, Any]:
    """All metrics of some rows.

    rig: 1 - log loss / log loss of the base rate; calibration: mean predicted / observed; ece: mean distance
    of predicted and observed rates over bins of equal row count. A metric without a meaning there is None.
    """
    y = np.asarray(labels, dtype=np.float64)
    rate = float(np.average(y, weights=weights))
    loss = log_loss(y, probabilities, weights)
    base = log_loss(y, np.full(len(y), rate), weights)
    curve = reliability(y, probabilities, weights)
    gaps = np.abs(np.subtract(curve["predicted"], curve["observed"]))
    area = auc(y, probabilities, weights)
    both = 0 < rate < 1
    return {
        "auc": area if both else None,
        "log_loss": loss,
        "rig": 1 - loss / base if both else None,
        "calibration": float(np.average(probabilities, weights=weights)) / rate if rate else None,
        "ece": float(np.average(gaps, weights=curve["weight"])),
        "rows": len(y),
        "positive_rate": rate,
        "reliability": curve,
    }
