"""How far the level of later rows will lie from that of the rows at hand, on the scale of logits.

Where rows are in the order of time, the rate of positives moves from block to block by more than chance. Whether it
returns to its mean or wanders off is read from the blocks themselves: each of a few processes (AR(1) of several ranges,
the random walk among them) counts as much as it makes the blocks likely, each of them given those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.dataset import Level
from fieldwise.evaluation.metrics import Floats, sigmoid

# Of the processes: how much of a block's distance from the mean is left in the next one (1: a random walk), and the
# standard deviation of the levels.
RANGES = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
SPREADS = (0.0, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0)
# As good as nothing is known of the mean itself.
VAGUE = 10.0
# Out of ten times, nine lie within this many standard deviations.
NINE_OF_TEN = 1.645


@dataclass(frozen=True)
class Outlook:
    """What is known of the level of later rows: level = `move` + `keep` x (what validation rows say) +- `sd`.

    All are on the scale of logits, from the level of the training rows. The rate of the validation rows lies `seen`
    from it: a model that they say to be off by more than that is so by itself, and not because the level moves.
    """

    keep: float
    move: float = 0.0
    sd: float = 0.0
    seen: float = 0.0

    def range(self, rate: float, positives: float) -> tuple[float, float]:
        """Between which bounds predicted/observed of later rows lies nine times out of ten, `positives` among them.

        >>> Outlook(1.0, sd=0.1).range(0.1, 500)
        (0.85..., 1.17...)
        """
        wide = NINE_OF_TEN * np.hypot(self.sd, 1 / np.sqrt(max(positives, 1.0) * (1 - rate)))
        low, high = rate / sigmoid(np.log(rate / (1 - rate)) + np.array([wide, -wide]))
        return float(low), float(high)


def outlook(levels: Sequence[Level]) -> Outlook | None:
    """What blocks of training and validation rows, in the order of time, say of the rows behind the last of them.

    None where there are too few blocks to say it.
    """
    known = [level for level in levels if level[0] in ("train", "valid") and level[1]]
    valid = np.array([part == "valid" for part, _, _ in known])
    if valid.sum() == 0 or (~valid).sum() < 3:
        return None
    rows, positives = np.array([level[1:] for level in known], dtype=np.float64).T
    seen = _logit((positives + 0.5) / (rows + 1))
    noise = 1 / (positives + 0.5) + 1 / (rows - positives + 0.5)
    trained = _logit((positives[~valid].sum() + 0.5) / (rows[~valid].sum() + 1))
    # As far ahead as the rows that will be measured, or as those that were validated on.
    steps = max(int(valid.sum()), sum(part == "test" for part, _, _ in levels))
    weights, sd = _ahead(seen - trained, noise, steps)
    move = float(weights[~valid] @ (seen - trained)[~valid])
    last = float(np.average((seen - trained)[valid], weights=1 / noise[valid]))
    return Outlook(float(np.clip(weights[valid].sum(), 0, 1)), move, sd, last)


def _ahead(seen: Floats, noise: Floats, steps: int) -> tuple[Floats, float]:
    """Weights (n,) of the blocks' levels whose sum is the mean level of the next `steps` blocks, and its deviation."""
    now, later = np.arange(len(seen)), len(seen) + np.arange(steps)
    found: list[tuple[float, Floats, float]] = []
    for left in RANGES:
        for spread in SPREADS if left == RANGES[0] else SPREADS[1:]:
            own = _covariance(now, now, left, spread) + np.diag(noise)
            between = _covariance(later, now, left, spread).mean(axis=0)
            solved = np.linalg.solve(own, np.column_stack([seen, between]))
            likely = -(seen @ solved[:, 0] + np.linalg.slogdet(own)[1]) / 2
            ahead = float(_covariance(later, later, left, spread).mean() - between @ solved[:, 1])
            found.append((float(likely), solved[:, 1], ahead))
    share = np.exp(np.array([likely for likely, _, _ in found]) - max(likely for likely, _, _ in found))
    share /= share.sum()
    weights = np.array([own for _, own, _ in found])
    means = weights @ seen
    middle = float(share @ means)
    variance = float(share @ (np.array([ahead for _, _, ahead in found]) + (means - middle) ** 2))
    return np.asarray(share @ weights), float(np.sqrt(max(variance, 0.0)))


def _covariance(one: NDArray[np.int64], other: NDArray[np.int64], left: float, spread: float) -> Floats:
    """Of the levels of blocks by their numbers, (n, m)."""
    if left < 1:
        moves = spread**2 * left ** np.abs(one[:, None] - other[None])
    else:
        # As wide as the others within twenty steps.
        moves = spread**2 / 20 * np.minimum(one[:, None], other[None])
    return np.asarray(moves + VAGUE**2)


def _logit(rate: NDArray[np.float64] | float) -> Floats:
    return np.asarray(np.log(rate) - np.log1p(-np.asarray(rate)))
