"""Table 10: parameters and training time of twelve models at N = 10^6 categories, n = 39 fields, k = 20.

Parameters are counted without allocating them, as in the table: weights without biases and norms. The table's FFM
(40.00 million) has a vector for each field; the paper's text, its code and ours have one for each *other* field
(39.00). All other models agree. The time is that of complete training steps (lookup, loss, gradients, Adam's sparse
update) on random rows on one core, the median of several after a warm-up; the paper has batches of 2000, `small` of
500.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from fieldwise import models
from fieldwise.data.schema import Layout
from fieldwise.nn.model import Model
from fieldwise.optim.make import make_optimizer
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import figures
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict
from fieldwise.train.steps.plain import log_loss

LAYOUT = Layout.of((25_642,) * 38 + (25_604,))
PAIRS = 741
DEEP: Row = {"dim": 20, "hidden": (700,) * 5, "dropout": 0.0}
# The models with their settings, and the expected number of parameters in millions.
SETTINGS: dict[str, tuple[str, Row, float]] = {
    "lr": ("lr", {}, 1.0),
    "fm": ("fm", {"dim": 20}, 21.0),
    "ffm": ("ffm", {"dim": 1}, 39.0),
    "afm": ("afm", {"dim": 20, "attention": 16}, 21.0),
    "kfm": ("kfm", {"dim": 20}, 21.296),
    "nifm": ("nifm", {"dim": 20, "subnet": (40, 1)}, 22.215),
    "fnn": ("fnn", DEEP, 22.507),
    "ccpm": ("ccpm", {"dim": 20, "dropout": 0.0}, 20.233),
    "deepfm": ("deepfm", DEEP, 23.507),
    "ipnn": ("ipnn", DEEP, 23.025),
    "kpnn": ("kpnn", DEEP, 23.322),
    "pin": ("pin", DEEP, 26.481),
}
# Not in the table: KFM with a vector instead of a matrix for each pair.
VECTORS = ("kfm, vector kernels", "kfm", {"dim": 20, "kernel": "vec"})
SIZES = {"small": (500, 3), "medium": (2000, 5), "paper": (2000, 5)}


def weights(model: torch.nn.Module) -> int:
    """The number of weights of a model, as the table counts: without biases and the gains and shifts of norms."""
    named = dict(model.named_parameters())
    norms = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        for name, _ in module.named_parameters(recurse=False)
    }
    return sum(value.numel() for name, value in named.items() if "bias" not in name and name not in norms)


def counted(name: str, settings: Row) -> int:
    with torch.device("meta"):
        model = models.build(name, LAYOUT, settings)
    assert isinstance(model, Model)
    return weights(model)


def step_seconds(name: str, settings: Row, batch: int, repeats: int) -> float:
    """Seconds of a training step: the median of several after two warm-up steps."""
    torch.manual_seed(0)
    model = models.build(name, LAYOUT, settings)
    assert isinstance(model, Model)
    optimizer = make_optimizer("adam", model.parameters(), lr=1e-3)
    found = []
    for _ in range(repeats + 2):
        ids = torch.stack([torch.randint(size, (batch,), dtype=torch.int32) for size in LAYOUT.sizes], dim=1)
        labels = torch.randint(2, (batch,)).float()
        began = time.perf_counter()
        loss = log_loss(model.combine(model.lookup(ids)), labels, None)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        found.append(time.perf_counter() - began)
    return median(found[2:])


def compute(setup: Setup) -> list[Row]:
    batch, repeats = SIZES[setup.size]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for shown, (name, settings, expected) in SETTINGS.items():
            facts: dict[str, Any] = {"model": shown, "millions": counted(name, settings) / 1e6, "expected": expected}
            rows.append(facts | {"milliseconds": 1e3 * step_seconds(name, settings, batch, repeats)})
        shown, name, settings = VECTORS
        took = 1e3 * step_seconds(name, settings, batch, repeats)
        rows.append({"model": shown, "millions": counted(name, settings) / 1e6, "milliseconds": took})
    finally:
        torch.set_num_threads(threads)
    return [row | {"batch": batch} for row in rows]


def claims(results: Results) -> list[Verdict]:
    off = {row["model"]: abs(row["millions"] - row["expected"]) for row in results.rows if "expected" in row}
    worst = max(off, key=lambda name: off[name])
    took = {str(row["model"]): float(row["milliseconds"]) for row in results.rows}
    others = min(value for name, value in took.items() if name != "lr")
    return [
        Verdict("parameters are those of the table to 4 digits, for all 12 models", 0.0006 - off[worst], 1, worst),
        Verdict("LR is the fastest", others / took["lr"] - 1),
        Verdict("KFM with matrix kernels takes at least twice FM's time", took["kfm"] / took["fm"] - 2, strict=False),
        Verdict("vector kernels halve the time of KFM", 0.5 - took[VECTORS[0]] / took["kfm"], strict=False),
    ]


STUDY = Study(
    id="table10",
    paper="Table 10",
    asks="How many parameters have the models, and how long do they train?",
    says="Millions: LR 1, FM 21, FFM 40, KFM 21.3, FNN 22.5, IPNN 23.0, PIN 26.5; KFM, KPNN and AFM are slowest.",
    keys=("model",),
    columns=(
        Column("millions", "Million parameters", ".3f"),
        Column("expected", "Paper (FFM: its text)", ".3f"),
        Column("milliseconds", "ms for a step", ",.1f"),
        Column("batch", "Rows of a step", ".0f"),
    ),
    compute=compute,
    claims=claims,
    draw=figures.panels(
        "{model}",
        "ms for a step",
        "",
        "{column}",
        {"Milliseconds for a training step": "milliseconds", "Million parameters": "millions"},
    ),
    budget=2,
)
