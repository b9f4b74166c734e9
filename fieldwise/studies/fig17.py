"""Figure 17: activations of an FNN on Avazu's look-alike, with and without layer norm."""

from __future__ import annotations

from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Plan, Results, Setup, Study, Verdict, lowest

ACTIVATIONS = ("relu", "tanh", "elu", "selu")
NORMS = ("none", "layer")


def plan(setup: Setup) -> Plan:
    return lookalikes.plan(
        setup,
        [
            (
                {"data": "avazu", "activation": activation, "norm": norm},
                lookalikes.settings("fnn", "avazu", setup.size) | {"model.activation": activation, "model.norm": norm},
            )
            for activation in ACTIVATIONS
            for norm in NORMS
        ],
    )


def claims(results: Results) -> list[Verdict]:
    auc = {(a, n): results.mean("auc", activation=a, norm=n) for a in ACTIVATIONS for n in NORMS}
    ours = auc["relu", "layer"]
    others = [value for key, value in auc.items() if key != ("relu", "layer")]
    alike = lowest(
        abs(auc["relu", norm] - auc["elu", norm]) - abs(auc["selu", norm] - auc["elu", norm]) for norm in NORMS
    )
    gains = [auc[a, "layer"] - auc[a, "none"] for a in ACTIVATIONS]
    return [
        Verdict(
            "ReLU with layer norm is the best of all eight", lowest(ours - other for other in others), results.seeds
        ),
        Verdict("SELU is as near to ELU as ReLU is, or nearer", alike, results.seeds, strict=False),
        Verdict("layer norm raises the AUC of every activation", lowest(gains), results.seeds),
    ]


STUDY = Study(
    id="fig17",
    paper="Figure 17",
    asks="Which activation is best, and does layer norm help?",
    says="ReLU is best, SELU is like ELU, and layer norm helps all of them.",
    keys=("activation", "norm"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.panels("{activation}", "{norm}", panel="FNN on Avazu's look-alike"),
    budget=3,
)
