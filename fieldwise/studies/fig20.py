"""Figure 20: a DNN on labels of a poly-2 function: sparsity hurts it, and poly-2 regression is better.

n = 40 fields; z = a weight for each category and for each pair of categories, plus noise of a tenth of z's standard
deviation; the label is whether z is above its median. (a) field sizes drawn from 1..2N/n for N = 200..1000, a DNN of 3
x 128. (b) field size 10, N = 400: DNNs against poly-2 regression. 100,000 training rows, 10,000 to choose the epoch,
20,000 for the test (the paper has two parts and takes the figure from the second); vectors of 10, Adam, batches of
1000. The paper's further statement, that width and depth do not help, is a separate claim here. At size small, 1 x 512
still gains in the last of its 8 epochs, which is part of the gap to poly-2 regression; medium has 20.
"""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import sources
from fieldwise.studies.study import Case, Plan, Results, Row, Setup, Study, Verdict, by_seed, lowest

FIELDS = 40
SPARSITY = (200, 400, 600, 800, 1000)
NETS: dict[str, tuple[int, ...]] = {
    "1 x 128": (128,),
    "1 x 512": (512,),
    "3 x 128": (128,) * 3,
    "5 x 1024": (1024,) * 5,
}
# Training rows of (a) and (b), epochs of the networks, and how many networks are tried.
SIZES: dict[str, tuple[int, int, int, int]] = {
    "small": (100_000, 100_000, 8, 3),
    "medium": (100_000, 100_000, 20, 4),
    "paper": (1_000_000, 1_000_000, 20, 4),
}
GAP = 0.03


def poly2(categories: int, same_sizes: bool, rows: int, seed: int) -> pa.Table:
    """Rows labelled by a random poly-2 function of 40 fields with `categories` categories in total."""
    rng = np.random.default_rng([20, categories, seed])
    mean = categories // FIELDS
    sizes = np.full(FIELDS, mean) if same_sizes else rng.integers(1, 2 * mean + 1, FIELDS)
    held_out = (rows // 10, rows // 5)
    total = rows + sum(held_out)
    codes = np.stack([rng.integers(size, size=total) for size in sizes])
    z = np.zeros(total)
    for field in range(FIELDS):
        z += rng.standard_normal(sizes[field])[codes[field]]
        for other in range(field + 1, FIELDS):
            z += rng.standard_normal((sizes[field], sizes[other]))[codes[field], codes[other]]
    z += 0.1 * z.std() * rng.standard_normal(total)
    columns: dict[str, Any] = {"click": (z >= np.median(z)).astype(np.int8)}
    columns |= {f"f{field}": codes[field] for field in range(FIELDS)}
    return pa.table(columns | {sources.PART: sources.parts_of((rows, *held_out))})


def dnn(hidden: tuple[int, ...], epochs: int) -> Row:
    """The settings of a plain DNN over vectors of 10."""
    plain = {
        "model.name": "fnn",
        "model.dim": 10,
        "model.hidden": list(hidden),
        "model.norm": "none",
        "model.dropout": 0.0,
    }
    return plain | _trained(epochs, 1e-3)


def _trained(epochs: int, lr: float) -> Row:
    return {
        "train.epochs": epochs,
        "train.lr": lr,
        "train.batch_size": 1000,
        "train.l2": 0.0,
        # U(-.1, .1) for vectors of 10.
        "train.init": "uniform-nk",
        "train.init_scale": 4.0,
        "train.evaluations": 1,
    }


def plan(setup: Setup) -> Plan:
    first, second, epochs, nets = SIZES[setup.size]
    tables = {f"a-{n}": partial(poly2, n, False, first) for n in SPARSITY} | {"b": partial(poly2, 400, True, second)}
    compared: dict[str, Row] = {net: dnn(NETS[net], epochs) for net in list(NETS)[:nets]}
    compared["poly-2"] = {"model.name": "poly2"} | _trained(epochs, 1e-2)
    cases: list[tuple[Row, str, Row]] = [
        ({"part": "a", "N": n, "model": "3 x 128"}, f"a-{n}", dnn(NETS["3 x 128"], epochs)) for n in SPARSITY
    ]
    cases += [({"part": "b", "N": 400, "model": name}, "b", settings) for name, settings in compared.items()]
    return by_seed(setup, cases, lambda data, seed: sources.codes(partial(tables[data], seed)))


def look(case: Case, run: Path) -> Row:
    """The training curve: validation AUC over the rows seen."""
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    found = [record for record in map(json.loads, lines) if record["event"] == "valid"]
    return {"_curve": [(record["rows"], record["auc"]) for record in found]}


def claims(results: Results) -> list[Verdict]:
    sparse, nets = results.where(part="a"), results.where(part="b")
    areas = [sparse.mean("auc", N=n) for n in SPARSITY]
    found = {str(name): nets.mean("auc", model=name) for name in nets.different("model")}
    truth = found.pop("poly-2")
    best = max(found, key=lambda name: (found[name] != found[name], found[name]))
    smallest = found["1 x 128"]
    shown = " ".join(f"{area:.3f}" for area in areas)
    return [
        Verdict("(a) AUC falls with every step of N", lowest(a - b for a, b in pairwise(areas)), results.seeds, shown),
        Verdict(
            f"(b) poly-2 regression is above the best DNN by {GAP} or more",
            truth - found[best] - GAP,
            results.seeds,
            f"{truth:.3f} against {found[best]:.3f} of {best}",
            strict=False,
        ),
        Verdict(
            "(b) neither width nor depth gains .01 over 1 x 128",
            0.01 - (found[best] - smallest),
            results.seeds,
            f"{best} gains {found[best] - smallest:.3f}",
        ),
    ]


def draw(results: Results) -> Figure:
    series = {}
    for row in results.where(seed=0).rows:
        name = f"N = {row['N']}" if row["part"] == "a" else f"(b) {row['model']}"
        if "_curve" in row:
            x, y = zip(*row["_curve"], strict=True)
            series[name] = ([rows / 1000 for rows in x], y)
    return plots.curves(series, "Thousand training rows seen", "Validation AUC")


STUDY = Study(
    id="fig20",
    paper="Figure 20",
    asks="How well does a DNN learn a poly-2 function, by sparsity and by its size?",
    says="AUC falls with N; poly-2 regression stays above all networks, and width and depth do not help.",
    keys=("part", "N", "model"),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".4f", None, "log_loss_sd"),
        Column("best_epoch", "Best epoch", ".0f"),
        Column("seconds", "Seconds", ",.0f"),
    ),
    plan=plan,
    look=look,
    claims=claims,
    draw=draw,
    seeds={"small": 3, "medium": 3, "paper": 3},
    budget=7,
)
