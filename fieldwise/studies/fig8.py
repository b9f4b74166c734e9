"""Figure 8: Adam's step as a function of the gradient, epsilon and the training step t.

Measured on our own optimiser. The paper analyses the textbook form, whose threshold g* grows with t from eps to 31.6
eps. For the optimiser of its experiments (`hat`) the same analysis gives 31.6 eps for every t, so the figure's (d)-(f)
describe another optimiser than that of Table 11.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import one_gradient
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict

EPSILONS = (1e-2, 1e-4, 1e-6, 1e-8)
# In the textbook form with eps = 1e-8: t -> g*, the greatest slope, the level of saturation.
EXPECTED = {1: (1e-8, 0.25, 1.0), 100: (9.757e-8, 0.2439, 0.9758), 10_000: (3.162e-7, 0.7906, 3.1622)}
TOLERANCE = 1e-3


def compute(setup: Setup) -> list[Row]:
    rows = []
    for mode in ("textbook", "hat"):
        for eps in EPSILONS:
            for t in one_gradient.STEPS:
                star, slope, level = one_gradient.threshold(t, eps, mode)
                rows.append({"form": mode, "eps": eps, "t": t, "g_star": star, "slope": slope, "level": level})
    return rows


def claims(results: Results) -> list[Verdict]:
    book = results.where(form="textbook")
    errors = []
    for t, expected in EXPECTED.items():
        (row,) = book.where(eps=1e-8, t=t).rows
        errors += [abs(row[key] / value - 1) for key, value in zip(("g_star", "slope", "level"), expected, strict=True)]
    in_t = [later / before - 1 for eps in EPSILONS for before, later in pairwise(book.values("g_star", eps=eps))]
    in_eps = [before / later - 1 for t in one_gradient.STEPS for before, later in pairwise(book.values("g_star", t=t))]
    ranges = [one_gradient.spread(results.values("g_star", form="hat", eps=eps)) for eps in EPSILONS]
    return [
        Verdict("g*, greatest slope and saturation are the derived ones to 1e-3", TOLERANCE - max(errors)),
        Verdict("g* grows with t (textbook form)", min(in_t)),
        Verdict("g* grows with eps (textbook form)", min(in_eps)),
        Verdict("g* is the same for every t in the form of the paper's runs", TOLERANCE - max(ranges)),
    ]


def draw(results: Results) -> Figure:
    logs, epsilons = np.linspace(-16, 0, 60), np.linspace(-12, 0, 40)
    parts = {}
    for t in one_gradient.STEPS:
        steps = np.stack([one_gradient.moved(10**logs, t, float(10**eps))[0] for eps in epsilons])
        parts[f"t = {t}"] = (*np.meshgrid(logs, epsilons), steps)
    return plots.surfaces(parts, ("log10 g", "log10 eps", "step / lr"))


STUDY = Study(
    id="fig8",
    paper="Figure 8",
    asks="How does Adam's step depend on the gradient, on epsilon and on the training step?",
    says="Gradients above g* give a constant step, those below shrink; g* grows with epsilon and with t.",
    keys=("form", "eps", "t"),
    columns=(
        Column("g_star", "g*", ".4g"),
        Column("slope", "Greatest slope", ".4f"),
        Column("level", "Saturation", ".4f"),
    ),
    compute=compute,
    claims=claims,
    draw=draw,
    budget=0.2,
)
