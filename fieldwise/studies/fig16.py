"""Figure 16: L2 on the vectors of an FNN. None or little on large sparse data; some on small dense data.

The penalty of the paper's code is on the looked-up rows and summed over the batch, while the loss is averaged, so its
values depend on the batch size (2000; `small` has 200). On Huawei's look-alike it is on the entire table.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from fieldwise.reporting import plots
from fieldwise.studies import lookalikes
from fieldwise.studies.study import Plan, Results, Row, Setup, Study, Verdict, highest, key_of_lowest

LOOKED_UP, FULL = (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3), (0.0, 1e-4, 1e-3, 5e-3, 2e-2, 5e-2)
SETS = {"small": ("avazu", "appstore"), "medium": ("criteo", "avazu", "appstore"), "paper": lookalikes.SETS}
BATCH = {"small": 200, "medium": 2000, "paper": 2000}


def grid(data: str) -> tuple[float, ...]:
    return FULL if data == "appstore" else LOOKED_UP


def plan(setup: Setup) -> Plan:
    cases = []
    for data in SETS[setup.size]:
        for value in grid(data):
            settings: Row = lookalikes.settings("fnn", data, setup.size) | {"train.batch_size": BATCH[setup.size]}
            full = data == "appstore"
            settings |= {"train.l2": 0.0, "train.l2_full": value} if full else {"train.l2": value}
            settings |= {} if full else {"train.l2_reduction": "sum"}
            cases.append(({"data": data, "l2": value}, settings))
    return lookalikes.plan(setup, cases)


def claims(results: Results) -> list[Verdict]:
    found = []
    for data in results.different("data"):
        values = grid(data)
        areas = {value: results.mean("auc", data=data, l2=value) for value in values}
        best = key_of_lowest({value: -area for value, area in areas.items()})
        small = [value for value in values if (value > 0 if data == "appstore" else value <= 1e-6)]
        others = [value for value in values if value not in small]
        claim = "some L2 is best" if data == "appstore" else "no L2, or at most 1e-6, is best"
        margin = highest(areas[value] for value in small) - highest(areas[value] for value in others)
        found.append(Verdict(f"{data}: {claim}", margin, results.seeds, f"the best is {best:g}"))
    return found


def draw(results: Results) -> Figure:
    # A logarithmic axis has no zero: it is drawn a step before the smallest value.
    series = {}
    for data in results.different("data"):
        values = grid(data)
        x = [value or values[1] / 10 for value in values]
        series[str(data)] = (x, [results.mean("auc", data=data, l2=value) for value in values])
    return plots.curves(series, "L2 (the leftmost is none)", "Test AUC", ("x",))


STUDY = Study(
    id="fig16",
    paper="Figure 16",
    asks="How much L2 should the vectors of an FNN have?",
    says="0 on Criteo and Avazu, 1e-6 on iPinYou, .005 on Huawei.",
    keys=("data", "l2"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=draw,
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=4,
)
