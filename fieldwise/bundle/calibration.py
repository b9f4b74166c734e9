"""Calibration: a model's logits -> probabilities that match observed rates, fitted on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.documents import number, numbers
from fieldwise.config.errors import ConfigError, unknown
from fieldwise.evaluation.metrics import Floats, losses, sigmoid
from fieldwise.evaluation.outlook import Outlook

# Numbers of rows to fit on, and of rows to score -> the probabilities of the latter.
Refit = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
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


@dataclass(frozen=True)
class BaseRate:
    """The rate among the training rows, all negatives counted, and how many positives it is from."""

    rate: float
    positives: float

    @property
    def noise(self) -> float:
        """The variance of its logit."""
        return 1 / max(self.positives * (1 - self.rate), 1e-9)


# Before any row is seen: a slope lies this far from 1, a shift this far from 0, and the level of one part this far from
# that of another. One time in fifty it lies anywhere, as where training rows were chosen: what is beyond chance is
# therefore believed at once.
SLOPE_SD, SHIFT_SD, LEVEL_SD = 0.1, 0.2, 0.1
ANYWHERE, ANYWHERE_SD = 0.02, 2.0


def fit(
    kind: str,
    labels: NDArray[Any],
    logits: NDArray[Any],
    weights: NDArray[Any] | None = None,
    offset: float = 0.0,
    ahead: Outlook | None = None,
    trained: BaseRate | None = None,
    bias: float = 0.0,
) -> Calibration:
    """The calibration of a kind that these rows, and what is usual, say; only the offset if one class is missing.

    `shift` moves all logits towards the observed rate; `platt` also scales them; `isotonic` fits a rising curve
    (needs a few thousand rows). The fewer positives there are, the less a slope and a shift leave 1 and 0.

    Rows of the future have another level than these: where the outlook `ahead` is given, it says how much of the shift
    stands, beside the `bias` that the model has on its own training rows. Else the rate of these rows and that of the
    rows `trained` on are the same but for chance.
    """
    if kind not in KINDS:
        raise ConfigError(unknown("calibration", kind, KINDS))
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    if kind == "none" or not (w * y).sum() or not (w * (1 - y)).sum():
        return Calibration(offset=offset)
    x = np.asarray(logits, dtype=np.float64) + offset
    if kind in ("shift", "platt"):
        return Calibration(kind, *_shrunk(x, y, w, kind == "platt", ahead, trained, bias), offset=offset)
    from sklearn.isotonic import IsotonicRegression

    curve = IsotonicRegression(y_min=1e-6, y_max=1 - 1e-6, out_of_bounds="clip").fit(sigmoid(x), y, sample_weight=w)
    bends = tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist())
    return Calibration(kind, 1.0, 0.0, *bends, offset)


# What is fitted on some validation rows is judged on others, in this many turns.
TURNS, MOST_ROWS, ENOUGH = 5, 50_000, 200


def turns(labels: NDArray[Any], in_time: bool) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Numbers of rows to fit on, and of others to judge by: folds with the same share of both labels, each by all
    others.

    Where the order of the rows is the time, the folds are blocks of it; and each is judged by those before it alone if
    these have enough of both labels to be fitted on.
    """
    rows = np.arange(len(labels))
    if in_time:
        blocks = np.array_split(rows, TURNS)
        positives = int(np.count_nonzero(np.asarray(labels)[blocks[0]]))
        rolls = min(positives, len(blocks[0]) - positives) >= ENOUGH
        for turn in range(1 if rolls else 0, TURNS):
            yield np.concatenate([*blocks[:turn], *(() if rolls else blocks[turn + 1 :])]), blocks[turn]
        return
    fold = np.empty(len(rows), dtype=np.int64)
    for own in (np.flatnonzero(labels), np.flatnonzero(np.asarray(labels) == 0)):
        fold[own] = np.arange(len(own)) % TURNS
    yield from ((rows[fold != turn], rows[fold == turn]) for turn in range(TURNS))


def cross_fitted(
    labels: NDArray[Any], fitted: Refit, weights: NDArray[Any] | None = None, in_time: bool = False
) -> float:
    """The log loss of rows none of which `fitted` has seen when it scores them: what a fit is worth on other rows."""
    rows, found = unseen_losses(labels, fitted, weights, in_time)
    return float(np.average(found, weights=None if weights is None else weights[rows]))


def unseen_losses(
    labels: NDArray[Any], fitted: Refit, weights: NDArray[Any] | None = None, in_time: bool = False
) -> tuple[NDArray[np.int64], Floats]:
    """Numbers of rows, and the loss of each where what scores it was fitted on others.

    Of very many rows, evenly spaced ones are enough.
    """
    rows = np.arange(0, len(labels), -(-len(labels) // MOST_ROWS))
    found, seen = np.empty(len(labels)), np.zeros(len(labels), dtype=bool)
    for known, others in turns(labels[rows], in_time):
        if len(known) and len(others):
            found[rows[others]], seen[rows[others]] = fitted(rows[known], rows[others]), True
    if not seen.any() or (weights is not None and not weights[seen].sum()):
        found[rows], seen[rows] = fitted(rows, rows), True
    return np.flatnonzero(seen), losses(labels[seen], found[seen])


def _shrunk(
    x: Floats, y: Floats, w: Floats, scale: bool, ahead: Outlook | None, trained: BaseRate | None, bias: float
) -> tuple[float, float]:
    """The slope and the shift of logits x (n,), drawn towards 1 and 0 by as much as chance may have moved them."""
    slope = 1.0
    # Weighted rows say as much as the rows of weight 1 that they are worth, whatever the scale of the weights.
    worth = w * (w.sum() / (w * w).sum())
    if scale:
        found, shift = _newton(x[None], y, w, np.ones(1), RIDGE_ROWS)
        told = worth * _variances(found[0] * x + shift)
        noise = 1 / max(told @ (x - np.average(x, weights=told + 1e-12)) ** 2, 1e-9)
        slope = 1 + kept(float(found[0]) - 1, noise, SLOPE_SD) * (float(found[0]) - 1)
    # With the first shift the slope leaves the level of the model as it is, with the second it is that of the rows.
    first = _shift(slope * x, sigmoid(x + bias), w)
    if ahead or not trained:
        last = _shift(slope * x, y, w)
        noise = 1 / max((worth * _variances(slope * x + last)).sum(), 1e-9)
    else:
        last = _shift(slope * x, np.full_like(y, _rate(float(np.average(y, weights=w)), worth.sum(), trained)), w)
        noise = _doubt_of_mean(slope * x + last, worth)
    apart = last - first
    return slope, first + (_ahead(apart, noise, ahead) if ahead else kept(apart, noise, SHIFT_SD) * apart)


def _ahead(shift: float, noise: float, ahead: Outlook) -> float:
    """What later rows keep of the shift that validation rows say: of what the rates themselves moved as the outlook
    says, and most of the rest, which is the model's."""
    moved = float(np.clip(shift, min(0.0, ahead.seen), max(0.0, ahead.seen)))
    rest = shift - moved
    return ahead.move + ahead.keep * moved + kept(rest, noise + ahead.sd**2, SHIFT_SD) * rest


def _rate(found: float, rows: float, trained: BaseRate) -> float:
    """The rate of rows like these, from theirs and from that of the training rows."""
    here, there = (np.log(rate / (1 - rate)) for rate in (found, trained.rate))
    noise = 1 / max(rows * found * (1 - found), 1e-9) + trained.noise
    return float(sigmoid(there + kept(here - there, noise, LEVEL_SD) * (here - there)))


def _doubt_of_mean(x: Floats, worth: Floats) -> float:
    """The variance of the shift that gives logits x (n,) a mean prediction, by the chance that drew these rows."""
    p = sigmoid(x)
    mean, slope = (float(np.average(values, weights=worth)) for values in (p, p * (1 - p)))
    return float(np.average((p - mean) ** 2, weights=worth) / max(float(worth.sum()) * slope**2, 1e-9))


def _shift(x: Floats, level: Floats, w: Floats) -> float:
    """What to add to logits x (n,) so that their mean prediction is the mean of `level` (n,)."""
    return _newton(x[None], level, w, np.ones(1), RIDGE_ROWS, scale=False)[1]


def kept(found: float, noise: float, usual: float) -> float:
    """The share of a distance that is believed: noise of that variance is in it, and `usual` is the deviation of most.

    >>> round(kept(0.22, 0.26**2, 0.1), 2), round(kept(2.2, 0.26**2, 0.1), 2), round(kept(0.22, 0.01**2, 0.1), 2)
    (0.13, 0.98, 0.99)
    """
    signals = np.array([usual**2, ANYWHERE_SD**2])
    likely = np.array([1 - ANYWHERE, ANYWHERE]) / np.sqrt(signals + noise)
    # Relative to the wider one, which is never 0.
    likely = likely * np.exp(-(found**2) / 2 * (1 / (signals + noise) - 1 / (signals[1] + noise)))
    return float((likely / likely.sum()) @ (signals / (signals + noise)))


def doubt(positives: float) -> float:
    """The standard deviation of a shift that this many positives have said."""
    return float(1 / np.sqrt(positives + 1 / SHIFT_SD**2))


def _variances(logits: Floats) -> Floats:
    p = sigmoid(logits)
    return np.asarray(p * (1 - p))


# How far the sum of a blend's weights lies from 1: members that err apart are too cautious together. And how far each
# weight lies from the average, as a share of it: on a few hundred rows chance says more than that.
SUM_SD, WEIGHT_SD = 0.1, 0.5


def stack(
    labels: NDArray[Any],
    logits: NDArray[Any],
    weights: NDArray[Any] | None = None,
    sum_sd: float = SUM_SD,
    weight_sd: float = WEIGHT_SD,
    shares: Floats | None = None,
) -> tuple[Floats, float]:
    """Weights (K,) of 0 or more and a shift for the logits (K, n) of several models, of least log loss on these rows.

    A ridge penalty pulls the weights towards their `shares` (K,) of 1, which are equal if they are not given, as a
    prior with `weight_sd` times the share as its standard deviation would, and their sum towards 1, from which it lies
    about `sum_sd` away; if one class is missing they are the shares.
    """
    x, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    plain = np.full(len(x), 1 / len(x)) if shares is None else shares
    if not (w * y).sum() or not (w * (1 - y)).sum():
        return plain, 0.0
    return _newton(x, y, w, plain, ridge=1 / (weight_sd * plain) ** 2, ridge_sum=1 / sum_sd**2)


def own_level(labels: NDArray[Any], logits: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    """The shift that gives logits (n,) the rate of their labels; 0 with one class alone."""
    y, w = np.asarray(labels, dtype=np.float64), np.ones(len(labels)) if weights is None else np.asarray(weights, float)
    one_class = not (w * y).sum() or not (w * (1 - y)).sum()
    return 0.0 if one_class else _shift(np.asarray(logits, dtype=np.float64), y, w)


def level_shift(logits: NDArray[Any], members: Floats, weights: NDArray[Any] | None = None) -> float:
    """The shift for the logits (K, n) of members with these weights (K,) that leaves the level as the members have it.

    The level is for `fit`, which knows how much of a correction to believe.
    """
    x = np.asarray(logits, dtype=np.float64)
    w = np.ones(x.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    return _shift(members @ x, members @ sigmoid(x) / members.sum(), w) if members.any() else 0.0


# The penalty on a slope away from 1, worth this many rows: a few separable rows must not make it infinite.
RIDGE_ROWS = 1.0
# Rows whose terms are summed at a time: they stay in the cache, and are too few for BLAS to wake threads for them.
CHUNK = 1 << 12


def _newton(
    x: Floats, y: Floats, w: Floats, middle: Floats, ridge: float | Floats, scale: bool = True, ridge_sum: float = 0.0
) -> tuple[Floats, float]:
    """Weights (K,) of 0 or more for the rows of x (K, n), and a shift, with the least log loss: Newton's method with
    step halving. A ridge pulls the weights towards `middle`, and another one their sum towards its sum; they stay there
    without `scale`, or if all of them would be 0: a model that ranks the wrong way round is not inverted."""
    # The first unknown is the shift, which has no bounds.
    least = np.array([-np.inf, *np.zeros(len(x))])
    goal, pull = np.array([0.0, *middle]), np.diag([0.0, *np.broadcast_to(ridge, len(x))])
    pull[1:, 1:] += ridge_sum

    def terms(values: Floats) -> tuple[float, Floats, Floats]:
        """The loss, its gradient and its second derivatives, of rows that fit into the cache at a time."""
        away = pull @ (values - goal)
        loss, gradient, hessian = float((values - goal) @ away) / 2, away, pull + 1e-9 * np.eye(len(pull))
        for first in range(0, len(y), CHUNK):
            own = slice(first, first + CHUNK)
            inputs = np.vstack([np.ones_like(y[own]), x[:, own]])
            logits, weights = values @ inputs, w[own]
            grown = np.exp(-np.abs(logits))
            p = np.where(logits < 0, grown, 1) / (1 + grown)
            loss += float(weights @ (np.log1p(grown) + np.maximum(logits, 0) - y[own] * logits))
            gradient = gradient + inputs @ (weights * (p - y[own]))
            hessian = hessian + (inputs * (weights * p * (1 - p))) @ inputs.T
        return loss, gradient, hessian

    # Starts where the mean logit is the log-odds of the base rate, which keeps the first step short.
    values = goal.copy()
    values[0] = np.log((w * y).sum() / (w * (1 - y)).sum()) - np.average(middle @ x, weights=w)
    loss, gradient, hessian = terms(values)
    for _ in range(100):
        # A weight at 0 that would become negative stays there.
        free = np.array([True, *((values[1:] > 0) | (gradient[1:] < 0))]) if scale else least < 0
        step = np.zeros_like(values)
        step[free] = np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        size, last, before = 1.0, values, loss
        while True:
            values = np.maximum(last - size * step, least)
            loss, gradient, hessian = terms(values)
            # What rounding adds to a sum of losses is no rise.
            if loss <= before * (1 + 1e-12) or size <= 1e-12:
                break
            size /= 2
        if np.abs(values - last).max() < 1e-10:
            break
    if not values[1:].any():
        return _newton(x, y, w, middle, ridge, scale=False)
    return values[1:], float(values[0])
