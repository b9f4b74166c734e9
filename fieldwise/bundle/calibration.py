"""From a model's logits to probabilities that mean what they say, fitted on validation rows."""

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
        """Reads what `to_json` gave; ValueError where that is no calibration."""
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
    """The calibration of that kind with the least log loss on these rows; the offset alone where one class is missing.

    `shift` moves all logits, so that the mean prediction is the observed rate; `platt` also scales them;
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

    Weights are drawn to the plain average 1 / K as if that were the standard deviation of what they may be; they are
    the plain average where one class is missing.
    """
    x, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    plain = np.full(len(x), 1 / len(x))
    if not (w * y).sum() or not (w * (1 - y)).sum():
        return plain, 0.0
    return _newton(x, y, w, plain, ridge=float(len(x)) ** 2)


# A slope is drawn to 1 as if this many rows spoke for it: a handful of separable rows must not make it infinite.
RIDGE_ROWS = 1.0


def _newton(x: Floats, y: Floats, w: Floats, middle: Floats, ridge: float, scale: bool = True) -> tuple[Floats, float]:
    """Weights (K,) of 0 or more for the rows of x (K, n), and the shift, of least log loss, by Newton's method with
    halved steps. Weights are drawn to `middle`, and stay there without `scale` and where all of them would be 0: a
    model that falls is not turned round."""
    inputs = np.vstack([np.ones_like(y), x])
    # The shift is the first of what is sought, free of all bounds.
    least = np.array([-np.inf, *np.zeros(len(x))])
    goal, pull = np.array([0.0, *middle]), np.array([0.0, *np.full(len(x), ridge)])

    def loss(at: Floats) -> float:
        logits = at @ inputs
        return float((w * (np.logaddexp(0, logits) - y * logits)).sum() + (pull * (at - goal) ** 2).sum() / 2)

    # Starting where the mean logit is the base rate's log-odds keeps the first step short.
    at = goal.copy()
    at[0] = np.log((w * y).sum() / (w * (1 - y)).sum()) - np.average(middle @ x, weights=w)
    for _ in range(100):
        p = sigmoid(at @ inputs)
        gradient = inputs @ (w * (p - y)) + pull * (at - goal)
        # A weight at 0 that would fall further waits there.
        free = np.array([True, *((at[1:] > 0) | (gradient[1:] < 0))]) if scale else least < 0
        hessian = (inputs * (w * p * (1 - p))) @ inputs.T + np.diag(pull + 1e-9)
        step = np.zeros_like(at)
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        size, before = 1.0, loss(at)
        while loss(np.maximum(at - size * step, least)) > before and size > 1e-12:
            size /= 2
        last, at = at, np.maximum(at - size * step, least)
        if np.abs(at - last).max() < 1e-10:
            break
    if not at[1:].any():
        return _newton(x, y, w, middle, ridge, scale=False)
    return at[1:], float(at[0])
