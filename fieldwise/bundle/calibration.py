"""Calibration: a model's logits -> probabilities that match observed rates, fitted on validation rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.documents import number, numbers
from fieldwise.config.errors import ConfigError, unknown
from fieldwise.evaluation.metrics import Floats, sigmoid

KINDS = ("none", "shift", "platt", "isotonic")


@dataclass(frozen=True)
class Calibration:
    """probability = curve(sigmoid(slope * (logit + offset) + shift)), the curve piecewise linear, or absent.

    `offset` is ln r where training kept a share r of its negatives: p becomes p / (p + (1 - p) / r), which is the
    probability among all rows.
    """

    kind: str = "none"
    slope: float = 1.0
    shift: float = 0.0
    curve_x: tuple[float, ...] = ()
    curve_y: tuple[float, ...] = ()
    offset: float = 0.0

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        p = sigmoid(self.slope * (np.asarray(logits, dtype=np.float64) + self.offset) + self.shift)
        return np.interp(p, self.curve_x, self.curve_y) if self.curve_x else p

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        """Reads the output of `to_json`; raises ValueError if it is no calibration."""
        given = set(values) - {"kind", "curve_x", "curve_y"}
        if values.get("kind") not in KINDS or not given <= {"slope", "shift", "offset"}:
            raise ValueError(f"its kind is one of {', '.join(KINDS)}, and it has a slope, a shift, an offset, a curve")
        curves: dict[str, Any] = {n: tuple(numbers(values, n)) for n in ("curve_x", "curve_y") if n in values}
        found = cls(values["kind"], **{name: number(values, name) for name in given} | curves)
        if not found.slope > 0:
            raise ValueError(f"slope must be above 0, found {found.slope}")
        for curve in (found.curve_x, found.curve_y):
            rises = all(low <= high for low, high in pairwise((0.0, *curve, 1.0)))
            if not rises or len(curve) != len(found.curve_x):
                raise ValueError("a curve rises between 0 and 1, with as many places as values")
        return found


def fit(
    kind: str,
    labels: NDArray[Any],
    logits: NDArray[Any],
    weights: NDArray[Any] | None = None,
    offset: float = 0.0,
) -> Calibration:
    """The calibration of a kind with the least log loss on these rows; only the offset if one class is missing.

    `shift` moves all logits until the mean prediction is the observed rate; `platt` also scales them;
    `isotonic` fits a rising curve (needs a few thousand rows).
    """
    if kind not in KINDS:
        raise ConfigError(unknown("calibration", kind, KINDS))
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    if kind == "none" or not (w * y).sum() or not (w * (1 - y)).sum():
        return Calibration(offset=offset)
    x = np.asarray(logits, dtype=np.float64) + offset
    if kind in ("shift", "platt"):
        slope, shift = _newton(x[None], y, w, np.ones(1), RIDGE_ROWS, scale=kind == "platt")
        return Calibration(kind, float(slope[0]), shift, offset=offset)
    from sklearn.isotonic import IsotonicRegression

    curve = IsotonicRegression(y_min=1e-6, y_max=1 - 1e-6, out_of_bounds="clip").fit(sigmoid(x), y, sample_weight=w)
    bends = tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist())
    return Calibration(kind, 1.0, 0.0, *bends, offset)


def stack(labels: NDArray[Any], logits: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[Floats, float]:
    """Weights (K,) of 0 or more and a shift for the logits (K, n) of several models, of least log loss on these rows.

    A ridge penalty pulls the weights towards the average 1 / K, as a prior with that standard deviation would; if one
    class is missing they are the average.
    """
    x, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    plain = np.full(len(x), 1 / len(x))
    if not (w * y).sum() or not (w * (1 - y)).sum():
        return plain, 0.0
    return _newton(x, y, w, plain, ridge=float(len(x)) ** 2)


# The penalty on a slope away from 1, worth this many rows: a few separable rows must not make it infinite.
RIDGE_ROWS = 1.0


def _newton(x: Floats, y: Floats, w: Floats, middle: Floats, ridge: float, scale: bool = True) -> tuple[Floats, float]:
    """Weights (K,) of 0 or more for the rows of x (K, n), and a shift, with the least log loss: Newton's method with
    step halving. A ridge pulls the weights towards `middle`; they stay there without `scale`, or if all of them would
    be 0: a model that ranks the wrong way round is not inverted."""
    inputs = np.vstack([np.ones_like(y), x])
    # The first unknown is the shift, which has no bounds.
    least = np.array([-np.inf, *np.zeros(len(x))])
    goal, pull = np.array([0.0, *middle]), np.array([0.0, *np.full(len(x), ridge)])

    def loss(values: Floats) -> float:
        logits = values @ inputs
        return float((w * (np.logaddexp(0, logits) - y * logits)).sum() + (pull * (values - goal) ** 2).sum() / 2)

    # Starts where the mean logit is the log-odds of the base rate, which keeps the first step short.
    values = goal.copy()
    values[0] = np.log((w * y).sum() / (w * (1 - y)).sum()) - np.average(middle @ x, weights=w)
    for _ in range(100):
        p = sigmoid(values @ inputs)
        gradient = inputs @ (w * (p - y)) + pull * (values - goal)
        # A weight at 0 that would become negative stays there.
        free = np.array([True, *((values[1:] > 0) | (gradient[1:] < 0))]) if scale else least < 0
        hessian = (inputs * (w * p * (1 - p))) @ inputs.T + np.diag(pull + 1e-9)
        step = np.zeros_like(values)
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        size, before = 1.0, loss(values)
        while loss(np.maximum(values - size * step, least)) > before and size > 1e-12:
            size /= 2
        last, values = values, np.maximum(values - size * step, least)
        if np.abs(values - last).max() < 1e-10:
            break
    if not values[1:].any():
        return _newton(x, y, w, middle, ridge, scale=False)
    return values[1:], float(values[0])
