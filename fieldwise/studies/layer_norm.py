"""Norms inside PIN's sub-networks: none, layer norm for each, and the fused norm, with gains shared or for each pair.

The paper's text: fused layer norm trains most stably. On Criteo's look-alike with pairs that are all networks, which is
what sub-networks are for, and with PIN's recipe there. Stable means first few diverged runs, then little spread over
the seeds of the others.
"""

from __future__ import annotations

from statistics import pstdev

from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import figures, lookalikes, sources
from fieldwise.studies.study import Case, Plan, Results, Setup, Study, Verdict

NORMS = ("none", "layer", "fused", "fused-per-pair")
DATA = "criteo"


def plan(setup: Setup) -> Plan:
    """The log is the same for every seed; only the start and the order of the rows differ."""
    usual = lookalikes.settings("pin", DATA, setup.size)
    cases = [
        Case({"norm": norm}, DATA, usual | {"model.subnet_norm": norm}, seed)
        for seed in range(setup.seeds)
        for norm in NORMS
    ]
    return Plan({DATA: sources.world(DATA, lookalikes.ROWS[setup.size][DATA], networks=1.0)}, cases)


def instability(results: Results, norm: str) -> tuple[int, float]:
    """How many runs diverged, and the standard deviation of the others' AUC."""
    own = results.where(norm=norm)
    areas = own.values("auc")
    return len(own.rows) - len(areas), pstdev(areas) if len(areas) > 1 else 0.0


def claims(results: Results) -> list[Verdict]:
    found = {norm: instability(results, norm) for norm in NORMS}
    shown = "; ".join(f"{norm} {diverged} diverged, sd {sd:.5f}" for norm, (diverged, sd) in found.items())
    verdicts = []
    for calm, wild in (("fused", "layer"), ("layer", "none")):
        diverged, spread = (found[wild][place] - found[calm][place] for place in (0, 1))
        claim = f"{calm} is at least as stable as {wild}"
        verdicts.append(Verdict(claim, float(diverged or spread), results.seeds, shown, strict=False))
    gain = results.mean("auc", norm="fused") - results.mean("auc", norm="layer")
    verdicts.append(
        Verdict("AUC with the fused norm is at least that with layer norm", gain, results.seeds, strict=False)
    )
    return verdicts


STUDY = Study(
    id="layer-norm",
    paper="Fused layer norm (section 3.3.4)",
    asks="Which norm inside PIN's sub-networks trains most stably?",
    says="The fused norm trains most stably.",
    keys=("norm",),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".5f", None, "log_loss_sd"),
        Column("best_epoch", "Best epoch", ".1f"),
        Column("seconds", "Seconds", ",.0f"),
    ),
    plan=plan,
    claims=claims,
    draw=figures.panels("{norm}", "AUC", panel="PIN"),
    seeds={"small": 3, "medium": 5, "paper": 5},
    budget=6,
)
