"""Is one model better than another on the same rows? Wilcoxon's signed-rank test over blocks of rows.

The held-out rows are divided into consecutive blocks. On each block both models have a log loss and an AUC, and the
test asks whether the differences are centred at zero. In a log ordered by time, neighbouring rows are alike: a good
hour then counts as one block, not as a thousand rows. (The paper's table 8 does not say what its pairs are.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fieldwise.bundle.predictions import Predictions
from fieldwise.config.errors import ConfigError, FieldwiseError
from fieldwise.evaluation import metrics
from fieldwise.evaluation.metrics import Floats

BLOCKS = 50
# With fewer blocks, even a model that is better on all of them has a two-sided p above 0.05.
LEAST_BLOCKS = 6
# A difference counts as significant below this two-sided p.
LEVEL = 0.05
NAMES = {"log_loss": "log loss", "auc": "AUC"}


def compare_pairs(
    named: Mapping[str, Sequence[Predictions]], pairs: Sequence[tuple[str, str]], blocks: int = 0
) -> dict[str, Any]:
    """Tests of whether the first of each pair is better than the second: `signed_rank` of log loss and of AUC.

    `named`: the runs of each model, one for each seed, all on the same rows; a block's value is the mean over the
    seeds. `blocks`: 0 takes BLOCKS, or one for each row if there are fewer.
    """
    first = next(iter(named.values()))[0]
    for name, runs in named.items():
        if not all(run.same_rows(first) for run in runs):
            rule = "only runs with the same held-out rows compare"
            found = f"those of {name} are not those of {next(iter(named))}"
            raise FieldwiseError(f"{rule}; {found}; train them on one prepared folder")
    blocks = blocks or min(BLOCKS, len(first.labels))
    measured = {name: [by_block(run, blocks) for run in runs] for name, runs in named.items()}
    results = []
    for name, other in pairs:
        tests = {}
        for metric in NAMES:
            first_values, second_values = (
                np.mean([run[metric] for run in measured[one]], axis=0) for one in (name, other)
            )
            gains = second_values - first_values if metric == "log_loss" else first_values - second_values
            tests[metric] = signed_rank(gains[np.isfinite(gains)])
        results.append({"name": name, "other": other, **tests})
    return {"part": first.part, "rows": len(first.labels), "blocks": blocks, "pairs": results}


def loss_gap(one: Predictions, other: Predictions, blocks: int = 0) -> tuple[float, float, int]:
    """By how much the log loss of `one` is above that of `other` on the same rows, the standard error of that, and the
    number of blocks. Neighbouring rows are alike, so the error is that of a mean over blocks, and not over rows."""
    rows = len(one.labels)
    blocks = _checked(blocks or min(BLOCKS, rows), rows)
    weights = np.ones(rows) if one.weights is None else one.weights.astype(np.float64)
    gaps = metrics.losses(one.labels, one.probabilities) - metrics.losses(other.labels, other.probabilities)
    parts = np.array_split(np.arange(rows), blocks)
    mean = float(np.average(gaps, weights=weights))
    away = np.array([((gaps[part] - mean) * weights[part]).sum() for part in parts])
    return mean, float(np.sqrt((away**2).sum() * blocks / (blocks - 1)) / weights.sum()), blocks


def _checked(blocks: int, rows: int) -> int:
    """A number of blocks into which rows can be divided."""
    if not LEAST_BLOCKS <= blocks <= rows:
        raise ConfigError(f"blocks must be from {LEAST_BLOCKS} to the number of rows, {rows:,}, found {blocks:,}")
    return blocks


def by_block(run: Predictions, blocks: int) -> dict[str, Floats]:
    """Log loss and AUC of each block; NaN if the block has no weight or, for the AUC, only one class."""
    rows = len(run.labels)
    blocks = _checked(blocks, rows)
    weights = np.ones(rows) if run.weights is None else run.weights.astype(np.float64)
    losses = metrics.losses(run.labels, run.probabilities) * weights
    parts = np.array_split(np.arange(rows), blocks)
    weight = np.array([weights[part].sum() for part in parts])
    with np.errstate(invalid="ignore"):
        loss = np.array([losses[part].sum() for part in parts]) / weight
    areas = [metrics.auc(run.labels[part], run.probabilities[part], weights[part]) for part in parts]
    return {"log_loss": loss, "auc": np.array(areas)}


def signed_rank(gains: Floats) -> dict[str, Any]:
    """Wilcoxon's signed-rank test of whether gains, one for each block, are centred at zero.

    p is two-sided; p_better tests for gains above zero, p_worse for gains below. Blocks without a difference are left
    out; p is 1 if none remains. mean and median are over all gains, None without any.
    """
    above, below = _tails(gains[gains != 0])
    tested = {"p": min(1.0, 2 * min(above, below)), "p_better": above, "p_worse": below}
    direction = "better" if tested["p_better"] < tested["p_worse"] else "worse"
    return {
        "blocks": len(gains),
        "better": int((gains > 0).sum()),
        "worse": int((gains < 0).sum()),
        "mean": float(gains.mean()) if len(gains) else None,
        "median": float(np.median(gains)) if len(gains) else None,
        **tested,
        "verdict": direction if tested["p"] < LEVEL else "not told apart",
    }


# Up to this many differences all signs are counted; above it the sum of ranks is as good as normal.
COUNTED = 50


def _tails(moved: Floats) -> tuple[float, float]:
    """How likely chance alone gives differences, none of them 0, a sum of positive ranks as high as theirs, or as low.

    By hand, because importing scipy.stats takes longer than all tests of a comparison; a test holds them together.
    """
    distinct, place, count = np.unique(np.abs(moved), return_inverse=True, return_counts=True)
    # Twice the ranks: those of equal differences, which share the mean of their ranks, are whole numbers too.
    ranks = (2 * np.cumsum(count) - count + 1)[place] if len(distinct) else np.zeros(0, dtype=np.int64)
    total, found = int(ranks.sum()), int(ranks[moved > 0].sum())
    if len(moved) > COUNTED:
        spread = math.sqrt(float((ranks.astype(np.float64) ** 2).sum()) / 2)
        score = (found - total / 2) / spread
        return math.erfc(score) / 2, math.erfc(-score) / 2
    ways = np.ones(1)
    for rank in ranks.tolist():
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    chances = ways / ways.sum()
    return min(1.0, float(chances[found:].sum())), min(1.0, float(chances[: found + 1].sum()))


def sentences(tested: Mapping[str, Any]) -> list[str]:
    """The result of `compare_pairs` in words: a sentence for each pair and metric."""
    return [
        _sentence(pair["name"], pair["other"], metric, pair[metric]) for pair in tested["pairs"] for metric in NAMES
    ]


def _sentence(name: str, other: str, metric: str, found: Mapping[str, Any]) -> str:
    title = NAMES[metric]
    if not found["blocks"]:
        return f"{name} and {other} cannot be compared on {title}: no block has rows of both classes."
    verdict = {
        "better": f"{name} is better than {other} on {title}: better in {found['better']}",
        "worse": f"{name} is worse than {other} on {title}: worse in {found['worse']}",
        "not told apart": f"{name} and {other} are not told apart on {title}: {name} is better in {found['better']}",
    }[found["verdict"]]
    one_sided = min(found["p_better"], found["p_worse"])
    gains = f"gain {found['mean']:+.5f} in the mean, {found['median']:+.5f} in the median"
    return f"{verdict} of {found['blocks']} blocks, p = {found['p']:.2g} (one-sided {one_sided:.2g}); {gains}."
