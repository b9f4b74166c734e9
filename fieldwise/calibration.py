"""From a model's logits to probabilities that mean what they say, fitted on validation rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.errors import BundleError, ConfigError, unknown
from fieldwise.metrics import sigmoid

KINDS = ("none", "shift", "platt", "isotonic")


@dataclass(frozen=True)
class Calibration:
    """probability = curve(sigmoid(slope * logit + shift)), the curve piecewise linear, or absent."""

    kind: str = "none"
    slope: float = 1.0
    shift: float = 0.0
    curve_x: tuple[float, ...] = ()
    curve_y: tuple[float, ...] = ()

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        p = sigmoid(self.slope * np.asarray(logits, dtype=np.float64) + self.shift)
        return np.interp(p, self.curve_x, self.curve_y) if self.curve_x else p

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        try:
            values = dict(values)
            for name in ("curve_x", "curve_y"):
                values[name] = tuple(float(x) for x in values[name])
            return cls(**values)
        except (TypeError, KeyError, ValueError) as error:
            raise BundleError(f"the calibration is damaged: {error}") from None


def fit(kind: str, labels: NDArray[Any], logits: NDArray[Any], weights: NDArray[Any] | None = None) -> Calibration:
    """The calibration of that kind with the least log loss on these rows; none where one class is missing.

    `shift` moves all logits, so that the mean prediction is the observed rate; `platt` also scales them;
    `isotonic` fits a rising curve (needs a few thousand rows).
    """
    if kind not in KINDS:
        raise ConfigError(unknown("calibration", kind, KINDS))
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    if kind == "none" or not (w * y).sum() or not (w * (1 - y)).sum():
        return Calibration()
    x = np.asarray(logits, dtype=np.float64)
    if kind in ("shift", "platt"):
        slope, shift = _newton(x, y, w, scale=kind == "platt")
        return Calibration(kind, slope, shift)
    from sklearn.isotonic import IsotonicRegression

    curve = IsotonicRegression(y_min=1e-6, y_max=1 - 1e-6, out_of_bounds="clip").fit(sigmoid(x), y, sample_weight=w)
    return Calibration(kind, 1.0, 0.0, tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist()))


def _newton(x: NDArray[np.float64], y: NDArray[np.float64], w: NDArray[np.float64], scale: bool) -> tuple[float, float]:
    """Logistic regression of y on x by Newton's method; a slope only where it stays positive."""
    slope, shift = 1.0, 0.0
    for _ in range(50):
        p = sigmoid(slope * x + shift)
        error, curvature = w * (y - p), np.maximum(w * p * (1 - p), 1e-12)
        gradient = np.array([error.sum(), (error * x).sum()])
        hessian = np.array([[curvature.sum(), (curvature * x).sum()], [0.0, (curvature * x * x).sum()]])
        hessian[1, 0] = hessian[0, 1]
        if scale:
            step = np.linalg.solve(hessian + 1e-9 * np.eye(2), gradient)
        else:
            step = np.array([gradient[0] / hessian[0, 0], 0.0])
        step = np.clip(step, -2.0, 2.0)
        shift, slope = shift + step[0], slope + step[1]
        if np.abs(step).max() < 1e-10:
            break
    if slope <= 0:
        # A slope below zero would turn the ranking round: fall back on the shift alone.
        return _newton(x, y, w, scale=False)
    return float(slope), float(shift)
