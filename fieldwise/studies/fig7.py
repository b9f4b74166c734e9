"""Figure 7: the gradient at the logit falls fast in the first steps, for every activation and optimiser.

FNN on iPinYou's look-alike. The paper does not define the quantity: the mean of |p - y| over a batch cannot fall to
zero, because labels are random; |mean(p - y)| can. We take the latter. A fit of its logarithm over the first tenth of
the steps shows whether the fall is exponential.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies.gradients import Watched
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict

ACTIVATIONS = ("relu", "tanh", "elu")
OPTIMIZERS: dict[str, Row] = {"adam": {"name": "adam", "lr": 1e-3}, "sgd": {"name": "sgd", "lr": 0.05}}
# Steps, rows of a batch.
SIZES = {"small": (600, 500), "medium": (3000, 2000), "paper": (10_000, 2000)}
LEAST_FIT, LARGEST_REST = 0.6, 0.2


def compute(setup: Setup) -> list[Row]:
    steps, batch = SIZES[setup.size]
    data, rows = Watched(setup), []
    for activation, (name, optimizer) in product(ACTIVATIONS, OPTIMIZERS.items()):
        for seed in range(setup.seeds):
            found: list[float] = []

            def watch(step: int, model: object, logits: torch.Tensor, labels: torch.Tensor) -> None:
                found.append(abs(float((torch.sigmoid(logits) - labels).mean())))  # noqa: B023

            options = {"dim": 10, "hidden": (140, 140), "norm": "none", "activation": activation}
            data.train(options, optimizer, steps, batch, watch, seed)
            slope, fit = fitted(found[: steps // 10])
            ends = {"first": float(np.mean(found[:3])), "last": float(np.mean(found[-steps // 10 :]))}
            rows.append({"activation": activation, "optimizer": name, "seed": seed, "slope": slope, "fit": fit, **ends})
            rows[-1]["_curve"] = found
    return rows


def fitted(values: list[float]) -> tuple[float, float]:
    """Slope and R squared of a line through the logarithms.

    >>> slope, fit = fitted([float(np.exp(-0.5 * step)) for step in range(10)])
    >>> round(slope, 6), round(fit, 6)
    (-0.5, 1.0)
    """
    x, y = np.arange(len(values)), np.log(np.maximum(values, 1e-9))
    slope, start = np.polyfit(x, y, 1)
    rest = ((y - slope * x - start) ** 2).sum() / max(((y - y.mean()) ** 2).sum(), 1e-30)
    return float(slope), float(1 - rest)


def claims(results: Results) -> list[Verdict]:
    rests = [row["last"] / row["first"] for row in results.rows]
    return [
        Verdict("the logit's gradient falls from the first step on", -max(results.values("slope")), results.seeds),
        Verdict(
            f"its fall is exponential: R squared of {LEAST_FIT} or more in the first tenth of the steps",
            min(results.values("fit")) - LEAST_FIT,
            results.seeds,
            strict=False,
        ),
        Verdict(
            f"at the end it is at most {LARGEST_REST} of what it was",
            LARGEST_REST - max(rests),
            results.seeds,
            strict=False,
        ),
    ]


def draw(results: Results) -> Figure:
    series = {}
    for row in results.where(seed=0).rows:
        curve = np.array(row["_curve"])
        means = [float(part.mean()) for part in np.array_split(curve, 60)]
        places = [float(part.mean()) for part in np.array_split(np.arange(len(curve)), 60)]
        series[f"{row['activation']} {row['optimizer']}"] = (places, means)
    return plots.curves(series, "Training step", "|mean of p - y|", ("y",))


STUDY = Study(
    id="fig7",
    paper="Figure 7",
    asks="How does the gradient at the logit fall in training?",
    says="Exponentially, at the early stage of training.",
    keys=("activation", "optimizer"),
    columns=(
        Column("first", "First steps", ".4f"),
        Column("last", "Last tenth", ".4f"),
        Column("slope", "Slope of the log", ".4f"),
        Column("fit", "R squared", ".3f"),
    ),
    compute=compute,
    claims=claims,
    draw=draw,
    seeds={"small": 1, "medium": 1, "paper": 3},
    budget=2,
)
