"""Sequences: how much of what the last items say does each way of reading them find?

Generated data: a world in which a user's next click depends on the last three items that he was shown
(data/world/sequential.py), whose truth is known. Every model reads the same rows, without and with what the user was
shown before; held-out rows see all that came before them, as in a server. `closed` is the share of the gap between the
best model without sequences, chosen by validation, and the truth itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.kinds.past import pasts
from fieldwise.data.world.sequential import SequentialWorld
from fieldwise.evaluation import metrics
from fieldwise.reporting.result_tables import Column, high, low
from fieldwise.studies import figures
from fieldwise.studies.study import (
    Case,
    Plan,
    Results,
    Row,
    Setup,
    Source,
    Study,
    Verdict,
    by_seed,
    key_of_lowest,
    lowest,
)

ROWS = {"small": 40_000, "medium": 200_000, "paper": 1_000_000}
EPOCHS = {"small": 20, "medium": 20, "paper": 10}
SHARES = (0.7, 0.15, 0.15)
ASKED = "item,category by user last 10 time row view rolling"
WITHOUT, WITH, TRUTH = "without", "with", "truth.npy"
NETWORK: Row = {"model.dim": 8, "model.hidden": [64, 64], "model.dropout": 0.0}
# The models without sequences, and those with one: the model, and how its sequence becomes a vector.
PLAIN = ("fm", "fnn", "pin")
POOLED = {
    "pin mean": ("pin", "mean"),
    "pin last": ("pin", "last"),
    "pin attention": ("pin", "attention"),
    "din": ("din", "attention"),
    "bst": ("bst", "encoder"),
}


def plan(setup: Setup) -> Plan:
    rows, epochs = ROWS[setup.size], EPOCHS[setup.size]
    cases: list[tuple[Row, str, Row]] = []
    for model in PLAIN:
        own = {key: value for key, value in NETWORK.items() if model != "fm" or key == "model.dim"}
        keys = {"model": model, "past": WITHOUT}
        cases.append((keys, WITHOUT, {"model.name": model, "train.epochs": epochs} | own))
    for name, (model, pool) in POOLED.items():
        own = {"model.name": model, "model.sequence": pool, "train.epochs": epochs}
        cases.append(({"model": name, "past": WITH}, WITH, own | NETWORK))
    return by_seed(setup, cases, lambda data, seed: source(rows, seed, data == WITH))


def source(rows: int, seed: int, sequences: bool) -> Source:
    """The rows of the world in the order of time, with what users were shown before or without."""

    def make(folder: Path) -> None:
        log = SequentialWorld(seed).log(rows, seed)
        asked = tuple(pasts(ASKED)) if sequences else ()
        prepare({"train": lambda: iter([log.table])}, folder, "click", split=Split(SHARES, by="row"), sequences=asked)
        np.save(folder / TRUTH, log.probability)

    return make


def look(case: Case, run: Path) -> Row:
    """The log loss of the truth on the test rows."""
    folder = Path(json.loads((run / "report.json").read_text(encoding="utf-8"))["data"])
    labels = Dataset.open(folder).parts["test"].labels
    return {"oracle": metrics.log_loss(labels, np.load(folder / TRUTH)[-len(labels) :])}


def claims(results: Results) -> list[Verdict]:
    seeds = results.seeds
    plain = {m: results.mean("valid_log_loss", model=m, past=WITHOUT) for m in PLAIN}
    best = str(key_of_lowest(plain))
    start, truth = results.mean("log_loss", model=best, past=WITHOUT), results.mean("oracle")
    loss = {name: results.mean("log_loss", model=name, past=WITH) for name in POOLED}
    closed = {name: (start - own) / (start - truth) for name, own in loss.items()}
    words = f"{best} {start:.4f}, truth {truth:.4f}; " + ", ".join(f"{name} {own:.0%}" for name, own in closed.items())
    return [
        Verdict(
            "DIN closes half of the gap from the best model without to the truth", closed["din"] - 0.5, seeds, words
        ),
        Verdict("PIN with attention is better than with a mean", loss["pin mean"] - loss["pin attention"], seeds),
        Verdict("no model is better than the truth", lowest(own - truth for own in loss.values()), seeds),
    ]


STUDY = Study(
    id="sequence",
    paper="Sequences (not in the paper)",
    asks="How much of what a user's last items say does each way of reading them find?",
    keys=("model", "past"),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".5f", low, "log_loss_sd"),
        Column("oracle", "The truth's", ".5f"),
        Column("valid_log_loss", "Valid log loss", ".5f", low),
        Column("parameters", "Parameters", ",.0f"),
        Column("seconds", "Seconds", ",.0f"),
    ),
    plan=plan,
    claims=claims,
    look=look,
    draw=figures.panels("{model}", "{past}", panel=""),
    budget=4,
)
