"""Table 7: vectors whose size depends on that of the field (adaptive) against one size for all, in KFM and NIFM.

On the look-alike of Avazu: 40 numbers for every field, or ceil(min(4 ln N_i, 40)), at least 1. The paper does not
specify the base of the logarithm and the rounding; these fit its example.
"""

from __future__ import annotations

from fieldwise.reporting.result_tables import Column
from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict

MODELS = ("kfm", "nifm")
DIM, FACTOR, SLACK = 40, 4.0, 0.0005
KINDS = {"fixed": 0.0, "adaptive": FACTOR}


def plan(setup: Setup) -> Plan:
    cases = []
    for model in MODELS:
        for kind, factor in KINDS.items():
            settings = lookalikes.settings(model, "avazu", setup.size, DIM) | {"model.adaptive": factor}
            settings |= {"model.subnet": [20, 1]} if model == "nifm" else {}
            cases.append(({"data": "avazu", "model": model, "vectors": kind}, settings))
    return lookalikes.plan(setup, cases)


def claims(results: Results) -> list[Verdict]:
    found = []
    for model in MODELS:
        area, count, speed = (
            {kind: results.mean(column, model=model, vectors=kind) for kind in KINDS}
            for column in ("auc", "parameters", "rows_per_s")
        )
        gain = area["adaptive"] - area["fixed"]
        claim = f"{model}: adaptive vectors lose no more than {SLACK} of AUC"
        found.append(Verdict(claim, gain + SLACK, results.seeds, strict=False))
        found.append(Verdict(f"{model}: adaptive vectors gain AUC", gain, results.seeds))
        share = count["adaptive"] / count["fixed"]
        found.append(Verdict(f"{model}: adaptive vectors have fewer parameters", 1 - share, 1, f"{share:.2f} of them"))
        words = f"{speed['adaptive']:,.0f} against {speed['fixed']:,.0f} rows/s"
        slower = 1 - speed["adaptive"] / speed["fixed"]
        found.append(Verdict(f"{model}: adaptive vectors train slower", slower, results.seeds, words))
    return found


STUDY = Study(
    id="table7",
    paper="Table 7",
    asks="Do vectors whose size follows the field's do as well, with fewer parameters?",
    says="Adaptive vectors are better for both models with fewer parameters, and train slower.",
    keys=("model", "vectors"),
    columns=(
        *lookalikes.COLUMNS,
        Column("parameters", "Parameters", ",.0f"),
        Column("rows_per_s", "Rows/s", ",.0f"),
    ),
    plan=plan,
    claims=claims,
    draw=figures.panels("{model}", "{vectors}", panel="Avazu's look-alike"),
    budget=4,
)
