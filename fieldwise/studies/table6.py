"""Table 6: thirteen models on four data sets. LR below FM below its relatives; product networks above other networks.

On the look-alikes of lookalikes.py, where half of the planted pairs are bilinear and half are small networks, so no
single product fits all of them. Every seed has its own world and start. GBDT is included if XGBoost is installed.
"""

from __future__ import annotations

from fieldwise.reporting.result_tables import Column
from fieldwise.studies import figures, lookalikes
from fieldwise.studies.lookalikes import PNNS
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, highest, lowest, mostly


def plan(setup: Setup) -> Plan:
    return lookalikes.plan(
        setup,
        [
            ({"data": data, "model": model}, lookalikes.settings(model, data, setup.size))
            for data in lookalikes.SETS
            for model in lookalikes.models()
        ],
    )


def claims(results: Results) -> list[Verdict]:
    margins: dict[str, dict[str, float]] = {}
    for data in results.different("data"):
        auc = {str(m): results.mean("auc", data=data, model=m) for m in results.different("model")}
        # A failed run is NaN, with which no claim holds.
        products, plain = [auc[m] for m in PNNS], [auc["fnn"], auc["deepfm"]]
        found = {
            "FM is above LR by more than .005": auc["fm"] - auc["lr"] - 0.005,
            "KFM is above FM": auc["kfm"] - auc["fm"],
            "KFM or NIFM is within .001 of FFM or above": highest([auc["kfm"], auc["nifm"]]) - auc["ffm"] + 0.001,
            "every product network is above FNN and DeepFM": lowest(p - q for p in products for q in plain),
            "PIN is within .001 of the other product networks or above": lowest(auc["pin"] - p for p in products)
            + 0.001,
        }
        for claim, margin in found.items():
            margins.setdefault(claim, {})[str(data)] = margin
    return [mostly(claim, own, results.seeds, strict="within" not in claim) for claim, own in margins.items()]


STUDY = Study(
    id="table6",
    paper="Table 6",
    asks="Which of thirteen models is best on four data sets?",
    says="LR < GBDT, FM < FFM, KFM, NIFM; the product networks lead on all four sets and PIN leads them.",
    keys=("data", "model"),
    columns=(*lookalikes.COLUMNS, Column("parameters", "Parameters", ",.0f"), Column("seconds", "Seconds", ",.0f")),
    plan=plan,
    claims=claims,
    draw=figures.panels("{model}", "AUC"),
    budget=25,
)
