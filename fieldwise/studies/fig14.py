"""Figure 14: FNN and AFM started from a trained FM instead of at random. It is not always better.

FNN starts with FM's vectors, AFM also with its linear part; the FM has the settings chosen on validation rows and the
same seed.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import stdev

from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, key_of_lowest

MODELS = ("fnn", "afm")
RANDOM, FM = "random", "from FM"
SETS = {"small": ("avazu", "appstore"), "medium": lookalikes.SETS, "paper": lookalikes.SETS}


def plan(setup: Setup) -> Plan:
    keys = [
        {"data": data, "model": model, "start": start}
        for data in SETS[setup.size]
        for model, start in (("fm", RANDOM), *((m, s) for m in MODELS for s in (RANDOM, FM)))
    ]
    whole = lookalikes.plan(setup, [(k, lookalikes.settings(k["model"], k["data"], setup.size)) for k in keys])
    return replace(
        whole,
        cases=[
            replace(case, start=f"{case.keys['data']} fm {RANDOM}") if case.keys["start"] == FM else case
            for case in whole.cases
        ],
    )


def claims(results: Results) -> list[Verdict]:
    doubts = {}
    for data in results.different("data"):
        for model in MODELS:
            areas = {s: results.values("auc", data=data, model=model, start=s) for s in (RANDOM, FM)}
            gain = results.mean("auc", data=data, model=model, start=FM) - results.mean(
                "auc", data=data, model=model, start=RANDOM
            )
            spread = max((stdev(found) for found in areas.values() if len(found) > 1), default=0.0)
            doubts[f"{data} {model}"] = spread - gain
    most = key_of_lowest({name: -doubt for name, doubt in doubts.items()})
    gains = ", ".join(f"{name} {-doubt:+.4f}" for name, doubt in doubts.items())
    words = f"not for {most}; gains less an sd: {gains}"
    return [Verdict("FM's start is not surely better everywhere", doubts[most], results.seeds, words, strict=False)]


STUDY = Study(
    id="fig14",
    paper="Figure 14",
    asks="Does it help to start from a trained FM?",
    says="Not always: better on some sets, worse on others.",
    keys=("data", "model", "start"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.panels("{model}", "{start}", where={"model": MODELS}),
    budget=4,
)
