"""Figure 18: dropout in an FNN on Avazu's look-alike, by batch size, with and without layer norm.

The paper's batches are 500 and 2000; `small` has 50 and 200, for as many steps with fewer rows. The rate is the
probability of dropping, as in the paper's text (in its code, of keeping).
"""

from __future__ import annotations

from itertools import product

from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, lowest

DROPS = (0.0, 0.1, 0.3, 0.5)
NORMS = ("none", "layer")
BATCHES = {"small": (50, 200), "medium": (500, 2000), "paper": (500, 2000)}


def plan(setup: Setup) -> Plan:
    return lookalikes.plan(
        setup,
        [
            (
                {"data": "avazu", "norm": norm, "batch": batch, "drop": drop},
                lookalikes.settings("fnn", "avazu", setup.size)
                | {"model.norm": norm, "model.dropout": drop, "train.batch_size": batch},
            )
            for norm, batch, drop in product(NORMS, BATCHES[setup.size], DROPS)
        ],
    )


def claims(results: Results) -> list[Verdict]:
    batches = sorted(results.different("batch"))

    def cost(norm: str, batch: int) -> float:
        own = results.where(norm=norm, batch=batch)
        return own.mean("auc", drop=0.0) - own.mean("auc", drop=DROPS[-1])

    plain, normed = ([cost(norm, batch) for batch in batches] for norm in NORMS)
    shown = " ".join(f"{value:+.4f}" for value in (*plain, *normed))
    return [
        Verdict("without norm, dropping half the units lowers the AUC", lowest(plain), results.seeds, shown),
        Verdict("it lowers it more in the smaller batch", plain[0] - plain[1], results.seeds, shown),
        Verdict(
            "with layer norm it lowers it less",
            lowest(a - b for a, b in zip(plain, normed, strict=True)),
            results.seeds,
            shown,
        ),
    ]


STUDY = Study(
    id="fig18",
    paper="Figure 18",
    asks="What does dropout do, by batch size, with and without layer norm?",
    says="It lowers AUC, more in small batches; layer norm makes up for some of it.",
    keys=("norm", "batch", "drop"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.curves("drop", "{norm}, batch {batch}", "Probability of dropping"),
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=6,
)
