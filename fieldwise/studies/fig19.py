"""Figure 19: heat maps of field pairs from FM, FFM and KFM on Avazu's look-alike, whose active pairs are known.

A pair's heat is the product of its fields' mean vectors (see `fieldwise explain`), plain and weighted by frequency. The
bar score is the mean of the map's row means, divided by its maximum: large if entire rows are hot. The AUC of the heat
as a classifier of active pairs shows which map finds the truth. Means of vectors lose their signs, so these maps may
show nothing; the standard deviation of each pair's term over rows, which does not, is shown too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fieldwise.bundle.bundle import load
from fieldwise.data.dataset import Dataset
from fieldwise.data.world import World
from fieldwise.evaluation import metrics, pair_maps
from fieldwise.nn.model import Model
from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import lookalikes
from fieldwise.studies.study import Case, Plan, Results, Row, Setup, Study, Verdict, lowest

MODELS = ("fm", "ffm", "kfm")
MAPS = ("plain", "weighted", "terms")


def plan(setup: Setup) -> Plan:
    return lookalikes.plan(
        setup,
        [({"data": "avazu", "model": m}, lookalikes.settings(m, "avazu", setup.size)) for m in MODELS],
    )


def look(case: Case, run: Path) -> Row:
    """The three maps of a run, their bar scores, and how well they detect active pairs."""
    opened = load(run)
    model, layout = opened.model, opened.own_encoder.layout.without_ranks
    assert isinstance(model, Model)
    folder = json.loads((run / "report.json").read_text(encoding="utf-8"))["data"]
    ids = np.array(Dataset.open(Path(folder)).parts["train"].ids[:20_000])
    found = {
        "plain": pair_maps.mean_map(model, layout),
        "weighted": pair_maps.mean_map(model, layout, pair_maps.counts_of(ids, layout)),
        "terms": pair_maps.variance_map(model, ids, layout),
    }
    row: Row = {}
    for name, matrix in found.items():
        assert matrix is not None
        row |= {f"{name}_bar": bar_score(matrix), f"{name}_auc": detection(matrix, opened.own_encoder.names, case.seed)}
        row[f"_{name}"] = matrix.tolist()
    return row | {"_names": opened.own_encoder.names}


def bar_score(matrix: NDArray[Any]) -> float:
    """The mean of the row means, divided by the largest entry: 1 if all pairs are equally hot, near 0 if only one is.

    >>> bar_score(np.array([[0.0, 1.0], [1.0, 0.0]]))
    1.0
    """
    fields = len(matrix)
    return float((matrix.sum(axis=1) / (fields - 1)).mean() / matrix.max())


def detection(matrix: NDArray[Any], names: list[str], seed: int) -> float:
    """The AUC of a map's entries as a classifier of the world's active pairs."""
    active = {frozenset(pair) for pair in World("avazu", seed).active_pairs}
    first, second = np.triu_indices(len(names), k=1)
    labels = np.array([frozenset((names[i], names[j])) in active for i, j in zip(first, second, strict=True)])
    return metrics.auc(labels.astype(np.uint8), matrix[first, second])


def claims(results: Results) -> list[Verdict]:
    found = []
    for name in MAPS:
        bars, areas = ([results.mean(f"{name}_{what}", model=m) for m in MODELS] for what in ("bar", "auc"))
        shown = " ".join(f"{value:.3f}" for value in bars)
        most = lowest([bars[0] - bars[1], bars[0] - bars[2]])
        found.append(Verdict(f"{name}: FM shows more bars than FFM and KFM", most, results.seeds, shown))
        found.append(Verdict(f"{name}: FFM shows more bars than KFM", bars[1] - bars[2], results.seeds, shown))
        shown = " ".join(f"{value:.3f}" for value in areas)
        claim = f"{name}: KFM's map tells the planted pairs better than FM's"
        found.append(Verdict(claim, areas[2] - areas[0], results.seeds, shown))
    return found


def draw(results: Results) -> Figure:
    rows = results.where(seed=0).rows
    maps = {f"{row['model']}, {name}": np.array(row[f"_{name}"]) for name in MAPS for row in rows if f"_{name}" in row}
    return plots.heat_grid(maps, len(MODELS))


STUDY = Study(
    id="fig19",
    paper="Figure 19",
    asks="What do FM, FFM and KFM learn of field pairs?",
    says="FM's map shows bars, coupled fields; KFM's isolated points; FFM's lies between.",
    keys=("model",),
    columns=(
        Column("auc", "AUC", ".4f"),
        *(Column(f"{name}_bar", f"Bars, {name}", ".3f") for name in MAPS),
        *(Column(f"{name}_auc", f"Finds, {name}", ".3f") for name in MAPS),
    ),
    plan=plan,
    look=look,
    weights=True,
    claims=claims,
    draw=draw,
    # The maps of three worlds did not tell FFM's bars from KFM's.
    seeds={"small": 1, "medium": 8, "paper": 8},
    budget=2,
)
