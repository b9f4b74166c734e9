"""Figure 9: a single gradient moves a weight for many steps, unless Adam's update is sparse.

Measured on our own optimiser: one gradient at step t, then zeros for 60 steps, in units of the learning rate.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import one_gradient
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict

WINDOW, EPS, GRADIENT = 60, 1e-8, 1e-2
# t -> the total movement of the weight, and its ratio to the first step.
EXPECTED = {1: (5.99, 6.0), 100: (10.18, 10.4), 10_000: (31.7, 10.0)}
# The expected numbers have three digits.
TOLERANCE = 5e-3


def compute(setup: Setup) -> list[Row]:
    rows = []
    for t in one_gradient.STEPS:
        steps = one_gradient.moved(np.array([GRADIENT]), t, EPS, idle=WINDOW)[:, 0]
        rest = one_gradient.moved_untouched(GRADIENT, t, EPS, WINDOW)
        times = steps.sum() / steps[0]
        facts = {"first": float(steps[0]), "total": float(steps.sum()), "times": float(times)}
        rows.append({"t": t, **facts, "sparse_rest": rest})
    return rows


def claims(results: Results) -> list[Verdict]:
    errors = []
    for t, expected in EXPECTED.items():
        (row,) = results.where(t=t).rows
        errors += [abs(row[key] / value - 1) for key, value in zip(("total", "times"), expected, strict=True)]
    tails = [row["total"] - row["first"] for row in results.rows]
    return [
        Verdict("the weight moves as far in 60 steps as derived, to 0.5 %", TOLERANCE - max(errors)),
        Verdict("most of the way comes after the gradient is gone", min(tails) - max(results.values("first"))),
        Verdict(
            "a sparse update moves no row that is not in the batch", -max(results.values("sparse_rest")), strict=False
        ),
    ]


def draw(results: Results) -> Figure:
    logs = np.linspace(-12, 0, 60)
    parts = {}
    for t in one_gradient.STEPS:
        steps = one_gradient.moved(10**logs, t, EPS, idle=WINDOW).cumsum(0)
        parts[f"t = {t}"] = (*np.meshgrid(logs, np.arange(WINDOW + 1)), steps)
    return plots.surfaces(parts, ("log10 g", "T", "cumulated / lr"))


STUDY = Study(
    id="fig9",
    paper="Figure 9",
    asks="How far does one gradient move a weight in the steps that follow it?",
    says="A gradient moves its weight for many steps more; the sum is several times the first step.",
    keys=("t",),
    columns=(
        Column("first", "First step", ".4f"),
        Column("total", "61 steps", ".4f"),
        Column("times", "Times the first", ".2f"),
        Column("sparse_rest", "Rest with sparse update", ".4f"),
    ),
    compute=compute,
    claims=claims,
    draw=draw,
    budget=0.2,
)
