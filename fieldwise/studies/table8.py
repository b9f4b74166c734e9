"""Table 8: are the product networks really better than other networks? Wilcoxon's signed-rank test.

On the runs of table6. The paper does not say what its pairs are; ours are the log losses of two models on each of 100
blocks of the test rows, and the test is one-sided: the product network is better. Every seed has its own world, so the
blocks of all seeds are separate pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fieldwise.bundle.predictions import Predictions
from fieldwise.evaluation.significance import by_block, signed_rank
from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import table6
from fieldwise.studies.lookalikes import PNNS
from fieldwise.studies.study import Case, Plan, Results, Row, Setup, Study, Verdict, mostly

OTHERS = ("fnn", "ccpm", "deepfm")
BLOCKS, LEVEL = 100, 1e-6


def plan(setup: Setup) -> Plan:
    return Plan({}, [], {"table6": table6.plan(setup)})


def look(case: Case, run: Path) -> Row:
    found = Predictions.load(run)
    assert found is not None
    return {"_blocks": by_block(found, min(BLOCKS, len(found.labels)))["log_loss"].tolist()}


def derive(results: Results) -> list[Row]:
    """A row for each data set and pair of models."""
    rows = []
    for data in results.different("data"):
        blocks = {str(m): _joined(results.where(data=data, model=m)) for m in (*PNNS, *OTHERS)}
        for model in PNNS:
            for other in OTHERS:
                row: Row = {"data": data, "model": model, "other": other, "p": None}
                if blocks[model] is not None and blocks[other] is not None:
                    found = signed_rank(blocks[other] - blocks[model])
                    row |= {"p": found["p_better"], "gain": found["mean"], "better": found["better"]}
                    row["blocks"] = found["blocks"]
                rows.append(row)
    return rows


def _joined(results: Results) -> Any:
    """The blocks of all seeds; None where a run failed."""
    blocks = [row.get("_blocks") for row in results.rows]
    return None if None in blocks or not blocks else np.concatenate([np.array(own) for own in blocks])


def _power(p: float | None) -> float:
    """By how many powers of ten a p-value is below the level."""
    return float("nan") if p is None else float(np.log10(LEVEL) - np.log10(max(p, 1e-300)))


def claims(results: Results) -> list[Verdict]:
    found = []
    for model in PNNS:
        for other in OTHERS:
            own = results.where(model=model, other=other)
            margins = {str(row["data"]): _power(row["p"]) for row in own.rows}
            claim = f"{model} is better than {other} with p below 1e-6 (margin in powers of ten)"
            found.append(mostly(claim, margins, results.seeds))
    return found


def draw(results: Results) -> Figure:
    parts = {
        str(data): {
            f"{row['model']} - {row['other']}": {"": [_power(row["p"])]} for row in results.where(data=data).rows
        }
        for data in results.different("data")
    }
    return plots.panels(parts, "Powers of ten below p = 1e-6")


STUDY = Study(
    id="table8",
    paper="Table 8",
    asks="Are the product networks' gains over other networks significant?",
    says="p below 1e-6 for every group of product models against every group of baselines.",
    keys=("data", "model", "other"),
    columns=(
        Column("p", "p", ".2g"),
        Column("gain", "Gain of log loss", "+.5f"),
        Column("better", "Blocks better", ".0f"),
        Column("blocks", "of", ".0f"),
    ),
    plan=plan,
    look=look,
    derive=derive,
    claims=claims,
    draw=draw,
    seeds=table6.STUDY.seeds,
    budget=0.5,
)
