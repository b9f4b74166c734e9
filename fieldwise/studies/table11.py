"""Table 11: Adam's epsilon with rare positives, for twelve models and both definitions of epsilon.

On the look-alike of iPinYou with .3 % positives below size `paper` (its .07 % would be too few). The paper analyses
the textbook form; its runs used `hat`: see fig8. The best epsilon is chosen by validation log loss; a run that does not
converge is "-" in the paper.
"""

from __future__ import annotations

from itertools import product

from matplotlib.figure import Figure

from fieldwise.reporting.result_tables import Column, high
from fieldwise.studies import figures, lookalikes, sources
from fieldwise.studies.study import Plan, Results, Row, Setup, Study, Verdict, by_seed, key_of_lowest

SHALLOW = ("lr", "fm", "ffm", "kfm", "afm")
MODELS = (*SHALLOW, "nifm", "fnn", "ccpm", "deepfm", "ipnn", "kpnn", "pin")
DATA = "ipinyou"
EPSILONS = (1e-2, 1e-4, 1e-6, 1e-8)
# Rows, the share of positives, epochs, and which forms are tried.
SIZES: dict[str, tuple[int, float, int, tuple[str, ...]]] = {
    "small": (60_000, 0.003, 2, ("hat",)),
    "medium": (2_000_000, 0.003, 3, ("textbook", "hat")),
    "paper": (19_500_000, 0.0007, 2, ("textbook", "hat")),
}


def plan(setup: Setup) -> Plan:
    rows, rate, epochs, forms = SIZES[setup.size]
    cases: list[tuple[Row, str, Row]] = []
    for model, form, eps in product(MODELS, forms, EPSILONS):
        # As in the paper, no bias starts at the base rate: epsilon acts on its large first gradients.
        settings = lookalikes.settings(model, DATA, setup.size) | {
            "train.eps": eps,
            "train.eps_mode": form,
            "train.lr": 1e-3,
            "train.epochs": epochs,
            "train.base_rate_start": False,
        }
        cases.append(({"model": model, "form": form, "eps": eps}, DATA, settings))
    return by_seed(setup, cases, lambda data, seed: sources.world(data, rows, seed, rate=rate))


def claims(results: Results) -> list[Verdict]:
    found = []
    for form in results.different("form"):
        own = results.where(form=form)
        drops, others = [], []
        for model in MODELS:
            areas = {eps: own.mean("auc", model=model, eps=eps) for eps in EPSILONS}
            losses = {eps: own.mean("valid_log_loss", model=model, eps=eps) for eps in EPSILONS}
            best = key_of_lowest(losses)
            others.append(best != EPSILONS[-1])
            if model in SHALLOW:
                # A run that does not converge counts as broken.
                fall = areas[best] - areas[EPSILONS[0]]
                drops.append(fall != fall or fall > 0.05)
        found += [
            Verdict(
                f"{form}: eps = 1e-2 costs at least 4 of 5 shallow models more than .05 of AUC",
                sum(drops) - 4,
                results.seeds,
                f"{sum(drops)} of 5",
                strict=False,
            ),
            Verdict(
                f"{form}: the best eps is not 1e-8 for at least 8 of 12 models",
                sum(others) - 8,
                results.seeds,
                f"{sum(others)} of 12",
                strict=False,
            ),
        ]
    return found


def draw(results: Results) -> Figure:
    form = results.different("form")[-1]
    return figures.curves("eps", "{model}", f"Adam's epsilon ({form})", ("x",), {"form": [form]})(results)


STUDY = Study(
    id="table11",
    paper="Table 11",
    asks="How sensitive are twelve models to Adam's epsilon where positives are rare?",
    says="Epsilon of 1e-2 breaks shallow models; 1e-8, the usual value, is rarely the best.",
    keys=("model", "form", "eps"),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".6f", None, "log_loss_sd"),
        Column("valid_log_loss", "Valid log loss", ".6f"),
    ),
    plan=plan,
    claims=claims,
    draw=draw,
    seeds={"small": 1, "medium": 3, "paper": 3},
    budget=20,
)
