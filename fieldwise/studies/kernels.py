"""Kernels of KFM: a number, a vector or a matrix for each pair of fields.

The paper's text: the richer the kernel, the better and the slower. On the look-alike of Avazu, whose planted pairs each
have their own kernel; the order of AUC may be violated by .001. Rows/s are of training, beside the other runs.
"""

from __future__ import annotations

from itertools import pairwise

from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, lowest

KERNELS = ("num", "vec", "mat")
DATA, SLACK = "avazu", 0.001


def plan(setup: Setup) -> Plan:
    settings = lookalikes.settings("kfm", DATA, setup.size)
    return lookalikes.plan(
        setup, [({"data": DATA, "kernel": kernel}, settings | {"model.kernel": kernel}) for kernel in KERNELS]
    )


def claims(results: Results) -> list[Verdict]:
    areas = [results.mean("auc", kernel=kernel) for kernel in KERNELS]
    speed = {kernel: results.mean("rows_per_s", kernel=kernel) for kernel in KERNELS}
    shown = " ".join(f"{area:.4f}" for area in areas)
    return [
        Verdict(
            "AUC does not fall from numbers to vectors to matrices, within .001",
            lowest(later - before for before, later in pairwise(areas)) + SLACK,
            results.seeds,
            shown,
            strict=False,
        ),
        Verdict("vectors train faster than matrices", speed["vec"] / speed["mat"] - 1, results.seeds),
    ]


STUDY = Study(
    id="kernels",
    paper="Kernels of KFM (section 3.1.2)",
    asks="Is a richer kernel better, and slower?",
    says="Matrices are better than vectors, vectors than numbers; and slower.",
    keys=("kernel",),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".5f", None, "log_loss_sd"),
        Column("parameters", "Parameters", ",.0f"),
        Column("rows_per_s", "Rows/s", ",.0f", high),
    ),
    plan=plan,
    claims=claims,
    draw=figures.panels("{kernel}", "auc", "", "{column}", {"Test AUC": "auc", "Rows/s": "rows_per_s"}),
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=3,
)
