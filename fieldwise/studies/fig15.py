"""Figure 15: the share of gradients above Adam's threshold g*, by epsilon and over the course of training.

FNN on iPinYou's look-alike; gradients of its first hidden layer; g* of the textbook form (fig8): eps / sqrt((1 - beta2)
/ (1 - beta2^t)). A smaller gradient hardly moves a weight.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies.gradients import Watched
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict, lowest

EPSILONS = (1e-2, 1e-4, 1e-6, 1e-8)
TIMES = (1, 10)
BETA = 0.999
# Steps, rows of a batch; a point is the mean over a twentieth of the steps.
SIZES = {"small": (400, 500), "medium": (3000, 2000), "paper": (10_000, 2000)}
POINTS = 20


def threshold(eps: float, step: int) -> float:
    return eps / math.sqrt((1 - BETA) / (1 - BETA**step))


def compute(setup: Setup) -> list[Row]:
    steps, batch = SIZES[setup.size]
    data, rows = Watched(setup), []
    for eps in EPSILONS:
        for seed in range(setup.seeds):
            sums = {times: [0.0] * POINTS for times in TIMES}

            def watch(step: int, model: Any, logits: torch.Tensor, labels: torch.Tensor) -> None:
                sizes = model.branches[0].classifier.layers[0].weight.grad.abs()
                for times in TIMES:
                    over = float((sizes > times * threshold(eps, step)).float().mean())  # noqa: B023
                    sums[times][(step - 1) * POINTS // steps] += over * POINTS / steps  # noqa: B023

            optimizer = {"name": "adam", "lr": 1e-3, "eps": eps}
            data.train({"dim": 10, "hidden": (140, 140), "norm": "none"}, optimizer, steps, batch, watch, seed)
            for times in TIMES:
                found = sums[times]
                facts = {"eps": eps, "times": times, "seed": seed, "first": found[0], "last": found[-1]}
                rows.append(facts | {"_curve": found})
    return rows


def claims(results: Results) -> list[Verdict]:
    last = [results.mean("last", eps=eps, times=1) for eps in EPSILONS]
    shown = " ".join(f"{value:.3f}" for value in last)
    return [
        Verdict(
            "with eps = 1e-8 at least .9 of the gradients stay above g*", last[-1] - 0.9, results.seeds, shown, False
        ),
        Verdict("with eps = 1e-2 at most .1 of them do", 0.1 - last[0], results.seeds, shown, False),
        Verdict(
            "the smaller eps, the more stay above g*",
            lowest(later - before for before, later in pairwise(last)),
            results.seeds,
            shown,
            strict=False,
        ),
    ]


def draw(results: Results) -> Figure:
    shares = [(point + 0.5) / POINTS for point in range(POINTS)]
    series = {f"eps {row['eps']:g}, {row['times']} g*": (shares, row["_curve"]) for row in results.where(seed=0).rows}
    return plots.curves(series, "Share of training", "Share of gradients above")


STUDY = Study(
    id="fig15",
    paper="Figure 15",
    asks="Which share of the gradients is above Adam's threshold?",
    says="It falls in training, the sooner the larger epsilon is, and stays near 1 for 1e-8.",
    keys=("eps", "times"),
    columns=(Column("first", "First twentieth", ".3f"), Column("last", "Last twentieth", ".3f")),
    compute=compute,
    claims=claims,
    draw=draw,
    seeds={"small": 1, "medium": 1, "paper": 3},
    budget=1,
)
