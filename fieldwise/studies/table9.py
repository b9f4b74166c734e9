"""Table 9: the best of every model over the sizes of fig11 and fig12, compared with table6.

On the runs of those three studies: the best of each model is chosen by validation log loss; the table shows its test
AUC. The paper's own "best" is sometimes below its Table 6 (FNN on iPinYou), which choosing on validation rows can
cause.
"""

from __future__ import annotations

from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import fig11, fig12, figures, table6
from fieldwise.studies.study import Plan, Results, Row, Setup, Study, Verdict, key_of_lowest, lowest, mostly

MODELS = ("fnn", "deepfm", "pin")


def plan(setup: Setup) -> Plan:
    return Plan({}, [], {"table6": table6.plan(setup), "fig11": fig11.plan(setup), "fig12": fig12.plan(setup)})


def derive(results: Results) -> list[Row]:
    """For each data set of the two figures: the best of their sizes, and table6's."""
    rows = []
    searched = [study for study in ("fig11", "fig12") if results.where(study=study).rows]
    sets = dict.fromkeys(data for study in searched for data in results.where(study=study).different("data"))
    for data in sets:
        for model in MODELS:
            found: dict[str, tuple[float, float]] = {}
            for study in searched:
                own = results.where(study=study, data=data, model=model)
                for row in own.rows:
                    keys = {key: row[key] for key in ("k", "width", "depth") if key in row}
                    found[f"{study} {keys}"] = (own.mean("valid_log_loss", **keys), own.mean("auc", **keys))
            usual = results.where(study="table6", data=data, model=model)
            known = {"table6": (usual.mean("valid_log_loss"), usual.mean("auc")), **found}
            best = key_of_lowest({name: loss for name, (loss, _) in known.items()})
            rows.append(
                {"data": data, "model": model, "auc": known[best][1], "best": best, "usual": known["table6"][1]}
            )
    return rows


def claims(results: Results) -> list[Verdict]:
    leads, keeps = {}, {}
    for data in results.different("data"):
        auc = {m: results.mean("auc", data=data, model=m) for m in MODELS}
        leads[data] = lowest(auc["pin"] - auc[m] for m in MODELS if m != "pin")
        keeps[data] = lowest(row["auc"] - row["usual"] for row in results.where(data=data).rows)
    return [
        mostly("the best PIN is above the best of FNN and DeepFM", leads, results.seeds, needed=len(leads)),
        mostly("no best is below its value in table6", keeps, results.seeds, needed=len(keeps), strict=False),
    ]


STUDY = Study(
    id="table9",
    paper="Table 9",
    asks="Which network is best when each has its best size?",
    says="PIN, on all four sets.",
    keys=("data", "model"),
    columns=(Column("auc", "AUC", ".4f", high), Column("usual", "In table6", ".4f"), Column("best", "Chosen", "")),
    plan=plan,
    derive=derive,
    claims=claims,
    draw=figures.panels("{model}", "{column}", columns={"best": "auc", "table6": "usual"}),
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=0.5,
)
