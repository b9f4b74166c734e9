"""How much of PIN's result is luck: the spread of its AUC over seeds compared with its lead over the best baseline.

The paper's text: a standard deviation of .0085 over 10 runs, which makes sense only in percentage points (8.5e-5). On
the look-alike of Criteo, with the same rows for every seed; the best baseline is chosen by validation log loss.
"""

from __future__ import annotations

from statistics import stdev

from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Case, Plan, Results, Setup, Study, Verdict, key_of_lowest

BASELINES = ("lr", "fm", "fnn", "deepfm")
DATA, SHARE = "criteo", 0.25


def plan(setup: Setup) -> Plan:
    cases = []
    for model in ("pin", *BASELINES):
        settings = lookalikes.settings(model, DATA, setup.size)
        # Three seeds are enough for the level of a baseline; PIN needs all for its spread.
        for seed in range(setup.seeds if model == "pin" else min(setup.seeds, 3)):
            cases.append(Case({"model": model}, DATA, settings, seed))
    return Plan({DATA: lookalikes.source(setup, DATA)}, cases)


def claims(results: Results) -> list[Verdict]:
    losses = {model: results.mean("valid_log_loss", model=model) for model in BASELINES}
    best = key_of_lowest(losses)
    areas = results.values("auc", model="pin")
    spread = stdev(areas) if len(areas) > 1 else float("nan")
    lead = results.mean("auc", model="pin") - results.mean("auc", model=best)
    words = f"sd {spread:.5f}, lead over {best} {lead:.5f}"
    return [
        Verdict("PIN's sd of AUC is at most a quarter of its lead", SHARE * lead - spread, len(areas), words, False)
    ]


STUDY = Study(
    id="seeds",
    paper="Robustness (section 5.2.1)",
    asks="Is PIN's lead larger than its spread over seeds?",
    says="A deviation of .0085 (percentage points) of AUC over ten runs.",
    keys=("model",),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".5f", None, "log_loss_sd"),
        Column("valid_log_loss", "Valid log loss", ".5f"),
    ),
    plan=plan,
    claims=claims,
    draw=figures.panels("{model}", "AUC", panel="A point for each seed"),
    seeds={"small": 3, "medium": 10, "paper": 10},
    budget=6,
)
