"""Beyond the paper: who overtakes whom as rows grow? Criteo's look-alike, from few rows to the paper's.

A larger log is a longer one of the same world, and a tenth of it is held out. Settings are the recipes' for every
number of rows; training stops early, or after the epochs of the size.
"""

from __future__ import annotations

from fieldwise.studies import figures, lookalikes, sources
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, by_seed, lowest

DATA = "criteo"
MODELS = ("fnn", "ipnn", "kpnn", "pin")
ROWS = {
    "small": (8_000, 16_000, 32_000),
    "medium": (1_000_000, 3_000_000, 10_000_000),
    "paper": (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000),
}


def plan(setup: Setup) -> Plan:
    cases = [
        ({"rows": rows, "model": model}, str(rows), lookalikes.settings(model, DATA, setup.size))
        for rows in ROWS[setup.size]
        for model in MODELS
    ]
    return by_seed(setup, cases, lambda rows, seed: sources.world(DATA, int(rows), seed))


def claims(results: Results) -> list[Verdict]:
    most = max(results.different("rows"))
    least = min(results.different("rows"))
    auc = {model: {rows: results.mean("auc", model=model, rows=rows) for rows in (least, most)} for model in MODELS}
    gains = lowest(auc[model][most] - auc[model][least] for model in MODELS)
    lead = {rows: auc["pin"][rows] - auc["kpnn"][rows] for rows in (least, most)}
    above = lowest(auc[model][most] - auc["fnn"][most] for model in MODELS[1:])
    return [
        Verdict("every network gains by more rows", gains, results.seeds),
        Verdict("with most rows every product network is above FNN", above, results.seeds),
        Verdict("PIN gains on KPNN by more rows", lead[most] - lead[least], results.seeds),
        Verdict("with most rows PIN is above KPNN", lead[most], results.seeds),
    ]


STUDY = Study(
    id="rows",
    paper="Rows (not in the paper)",
    asks="Which network is best with how many rows?",
    says="nothing; its logs have 2 to 10 10^7 rows.",
    keys=("rows", "model"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.curves("rows", "{model}", "Rows", ("x",)),
    seeds={"small": 1, "medium": 3, "paper": 1},
    budget=10,
)
