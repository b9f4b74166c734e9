"""Figure 11: the size of the vectors. FM overfits when they grow; PIN keeps gaining.

k = 4, 8, 16, 32 for FM, FNN, DeepFM and PIN; `small` has two of the four look-alikes.
"""

from __future__ import annotations

from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, highest, mostly

MODELS = ("fm", "fnn", "deepfm", "pin")
DIMS = (4, 8, 16, 32)
SETS = {"small": ("avazu", "appstore"), "medium": lookalikes.SETS, "paper": lookalikes.SETS}


def plan(setup: Setup) -> Plan:
    return lookalikes.plan(
        setup,
        [
            ({"data": data, "model": model, "k": dim}, lookalikes.settings(model, data, setup.size, dim))
            for data in SETS[setup.size]
            for model in MODELS
            for dim in DIMS
        ],
    )


def claims(results: Results) -> list[Verdict]:
    falls, slopes = {}, {}
    for data in results.different("data"):
        auc = {m: [results.mean("auc", data=data, model=m, k=k) for k in DIMS] for m in MODELS}
        falls[data] = highest(auc["fm"]) - auc["fm"][-1]
        slopes[data] = (auc["pin"][-1] - auc["pin"][-2]) - (auc["fm"][-1] - auc["fm"][-2])
    return [
        mostly(f"FM is best below k = {DIMS[-1]}", falls, results.seeds, needed=2),
        mostly("PIN gains more than FM in the last step of k", slopes, results.seeds, needed=len(slopes), strict=False),
    ]


STUDY = Study(
    id="fig11",
    paper="Figure 11",
    asks="How large should the vectors be?",
    says="FM and DeepFM have an optimum inside the range and over-fit beyond it; PIN keeps gaining.",
    keys=("data", "model", "k"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.curves("k", "{model} {data}", "Size of the vectors", ("x",)),
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=12,
)
