"""Figure 12: width and depth of the DNN. PIN is above FNN and DeepFM at every point, most where the DNN is small.

Widths 20 to 320 with three layers, and one to five layers of 80; `small` has fewer, on one look-alike.
"""

from __future__ import annotations

from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, lowest, mostly

MODELS = ("fnn", "deepfm", "pin")
WHOLE = tuple((width, 3) for width in (20, 40, 80, 160, 320)) + ((80, 1), (80, 5))
SIZES: dict[str, tuple[tuple[str, ...], tuple[tuple[int, int], ...]]] = {
    "small": (("appstore",), ((20, 3), (80, 3), (320, 3), (80, 1), (80, 5))),
    "medium": (lookalikes.SETS, WHOLE),
    "paper": (lookalikes.SETS, WHOLE),
}


def plan(setup: Setup) -> Plan:
    sets, shapes = SIZES[setup.size]
    return lookalikes.plan(
        setup,
        [
            (
                {"data": data, "model": model, "width": width, "depth": depth},
                lookalikes.settings(model, data, setup.size, hidden=(width,) * depth),
            )
            for data in sets
            for model in MODELS
            for width, depth in shapes
        ],
    )


def claims(results: Results) -> list[Verdict]:
    least, shrinks = {}, {}
    for data in results.different("data"):
        own = results.where(data=data)
        shapes = dict.fromkeys((row["width"], row["depth"]) for row in own.rows)
        gaps = {}
        for width, depth in shapes:
            auc = {m: own.mean("auc", model=m, width=width, depth=depth) for m in MODELS}
            gaps[width, depth] = lowest([auc["pin"] - auc["fnn"], auc["pin"] - auc["deepfm"]])
        widths = sorted(width for width, depth in shapes if depth == 3)
        least[data] = lowest(gaps.values())
        shrinks[data] = gaps[widths[0], 3] - gaps[widths[-1], 3]
    return [
        mostly("PIN is at least at FNN and DeepFM for every width and depth", least, results.seeds, strict=False),
        mostly("PIN's lead is larger in the narrowest net than in the widest", shrinks, results.seeds),
    ]


STUDY = Study(
    id="fig12",
    paper="Figure 12",
    asks="How wide and deep should the DNN be?",
    says="PIN is above FNN and DeepFM throughout, by most where nets are small; the others over-fit when large.",
    keys=("data", "model", "width", "depth"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.curves("width", "{model} {data}", "Width of three layers", ("x",), {"depth": [3]}),
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=4,
)
