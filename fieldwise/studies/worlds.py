"""Beyond the paper: whose product fits which world? From all pairs bilinear to all of them small networks, from few
pairs that interact to most.

Half of a look-alike's pairs are bilinear, which a kernel fits exactly, and half are small networks, and three of ten
pairs interact. Here the same models are trained on Criteo's look-alike with other shares; all pairs together have the
same variance in each.
"""

from __future__ import annotations

from fieldwise.data.world.world import ACTIVE, NETWORKS
from fieldwise.studies import figures, lookalikes, sources
from fieldwise.studies.lookalikes import PNNS
from fieldwise.studies.study import Plan, Results, Setup, Source, Study, Verdict, by_seed, lowest

DATA = "criteo"
MODELS = ("fnn", "deepfm", *PNNS)
# The share of planted pairs that are networks, and of pairs that are planted.
SHARES = {"networks": (0.0, 0.25, 0.5, 0.75, 1.0), "active": (0.05, 0.3, 0.8)}
VARIED = [(vary, share) for vary, shares in SHARES.items() for share in shares]


def plan(setup: Setup) -> Plan:
    rows, cases = lookalikes.ROWS[setup.size][DATA], []
    for vary, share in VARIED:
        for model in MODELS:
            keys = {"vary": vary, "share": share, "model": model}
            cases.append((keys, f"{vary} {share:g}", lookalikes.settings(model, DATA, setup.size)))

    def source(name: str, seed: int) -> Source:
        vary, share = name.split()
        return sources.world(
            DATA,
            rows,
            seed,
            networks=float(share) if vary == "networks" else NETWORKS,
            active=float(share) if vary == "active" else ACTIVE,
        )

    return by_seed(setup, cases, source)


def claims(results: Results) -> list[Verdict]:
    def lead(vary: str, share: float, model: str, other: str) -> float:
        own = results.where(vary=vary, share=share)
        return own.mean("auc", model=model) - own.mean("auc", model=other)

    bilinear, networks = (lead("networks", share, "pin", "kpnn") for share in (0.0, 1.0))
    everywhere = [
        lead(vary, share, model, other) for vary, share in VARIED for model in PNNS for other in ("fnn", "deepfm")
    ]
    return [
        Verdict("where all pairs are bilinear KPNN is above PIN", -bilinear, results.seeds),
        Verdict("where all pairs are networks PIN is above KPNN", networks, results.seeds),
        Verdict("PIN gains on KPNN from the first world to the second", networks - bilinear, results.seeds),
        Verdict("every product network is above FNN and DeepFM in every world", lowest(everywhere), results.seeds),
    ]


STUDY = Study(
    id="worlds",
    paper="Worlds (not in the paper)",
    asks="Which product fits pairs that are bilinear, or networks, or many?",
    says="nothing; PIN's sub-networks are to learn what no product is.",
    keys=("vary", "share", "model"),
    columns=lookalikes.COLUMNS,
    plan=plan,
    claims=claims,
    draw=figures.curves("share", "{model}, {vary}", "Share of pairs that are networks, or that are active"),
    budget=25,
)
