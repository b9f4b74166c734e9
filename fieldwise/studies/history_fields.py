"""History fields: what all thirteen models gain from the history of users, items and their pairs.

Generated data: a world whose users return to items, and whose pairs have effects that vectors of users and items cannot
express (`simulate --kind repeat`). With --data also Frappe (as published, and split by groups, which is the one to
trust), Criteo, Avazu and Amazon. The best model of each kind is chosen by validation log loss; test rows are used once.
"""

from __future__ import annotations

from collections.abc import Callable

from fieldwise.data.encode.prepare import Split
from fieldwise.data.schema import HistorySettings
from fieldwise.reporting.result_tables import Column, high, low
from fieldwise.studies import figures, lookalikes, sources
from fieldwise.studies.sources import CONTEXT
from fieldwise.studies.study import Case, Plan, Results, Row, Setup, Source, Study, Verdict, key_of_lowest, lowest

WITHOUT, WITH = "without", "with history"
# Rows of the generated log, the most rows of a real set, and the most epochs.
SIZES = {"small": (20_000, 20_000, 6), "medium": (100_000, 1 << 30, 20), "paper": (500_000, 1 << 30, 20)}
# CatBoost's AUC and log loss on the same rows of Frappe, with 1000 rounds.
CATBOOST = {"frappe": (0.9932, 0.0757), "frappe-grouped": (0.9902, 0.1041)}

REPEAT = HistorySettings(("user", "item", "user*item"), time="row")
FRAPPE = ("user", "item", "user*item", *(f"item*{name}" for name in CONTEXT))
CRITEO = HistorySettings(tuple(f"C{i}" for i in range(1, 27)), time="row", strength=5.0, parts=("rate",), interpolate=8)
AVAZU = HistorySettings(("site_id", "app_id", "device_ip", "C14", "C17", "site_id*C14"), time="hour", parts=("rate",))
AMAZON = HistorySettings(("MGR_ID*ROLE_TITLE", "RESOURCE*ROLE_DEPTNAME", "RESOURCE", "MGR_ID", "MGR_ID*RESOURCE"))


def _sets(setup: Setup) -> dict[str, Callable[[bool, int], Source]]:
    """For each data set, a function that makes its rows, with or without history, for a seed."""
    rows, most, _ = SIZES[setup.size]
    found: dict[str, Callable[[bool, int], Source]] = {
        "repeat": lambda with_history, seed: sources.world(
            "repeat", rows, seed, REPEAT if with_history else None, Split((0.7, 0.15, 0.15), by="row")
        )
    }
    data = setup.data
    if data is None:
        return found
    grouped = HistorySettings(FRAPPE, group=("user", *CONTEXT), folds=30)
    real: dict[str, tuple[str, Callable[[bool, int], Source]]] = {
        "frappe": (
            "frappe",
            lambda with_history, _: sources.frappe(
                data, HistorySettings(FRAPPE) if with_history else None, most, False
            ),
        ),
        "frappe-grouped": (
            "frappe",
            lambda with_history, _: sources.frappe(data, grouped if with_history else None, most, True),
        ),
        "criteo": ("criteo80k", lambda with_history, _: sources.criteo(data, CRITEO if with_history else None, most)),
        "avazu": ("avazu20k", lambda with_history, _: sources.avazu(data, AVAZU if with_history else None, most)),
        "amazon": (
            "amazon",
            lambda with_history, seed: sources.amazon(data, AMAZON if with_history else None, most, seed),
        ),
    }
    return found | {name: make for name, (folder, make) in real.items() if (data / folder).is_dir()}


def plan(setup: Setup) -> Plan:
    """Each model on each data set, with and without history; worlds and Amazon's folds change with the seed."""
    made: dict[str, Source] = {}
    cases = []
    for seed in range(setup.seeds):
        for data, make in _sets(setup).items():
            for kind in (WITHOUT, WITH):
                number = seed if data in ("repeat", "amazon") else 0
                place = f"{data}-{kind.replace(' ', '-')}-{number}"
                made[place] = make(kind == WITH, number)
                for model in lookalikes.models():
                    settings: Row = {"model.name": model}
                    settings |= {} if model == "gbdt" else {"train.epochs": SIZES[setup.size][2]}
                    cases.append(Case({"data": data, "model": model, "history": kind}, place, settings, seed))
    return Plan(made, cases)


def best(results: Results, data: str, kind: str) -> str:
    """The model of the lowest validation log loss."""
    models = results.where(data=data).different("model")
    losses = {model: results.mean("valid_log_loss", data=data, model=model, history=kind) for model in models}
    return str(key_of_lowest(losses))


def claims(results: Results) -> list[Verdict]:
    found, seeds = [], results.seeds
    for data in results.different("data"):
        own = results.where(data=data)
        chosen = {kind: best(results, data, kind) for kind in (WITHOUT, WITH)}
        auc = {kind: own.mean("auc", model=chosen[kind], history=kind) for kind in chosen}
        loss = {kind: own.mean("log_loss", model=chosen[kind], history=kind) for kind in chosen}
        words = f"{chosen[WITH]} {loss[WITH]:.4f} against {chosen[WITHOUT]} {loss[WITHOUT]:.4f}"
        claim = f"{data}: the best model with history has a lower log loss than the best without"
        found.append(Verdict(claim, loss[WITHOUT] - loss[WITH], seeds, words))
        gains = {
            model: own.mean("auc", model=model, history=WITH) - own.mean("auc", model=model, history=WITHOUT)
            for model in own.different("model")
        }
        worst = min(gains, key=lambda model: (gains[model] == gains[model], gains[model]))
        words = f"the least is {worst}'s; {sum(gain > 0 for gain in gains.values())} of {len(gains)} gain"
        found.append(Verdict(f"{data}: every model has a higher AUC with history", gains[worst], seeds, words))
        if data in CATBOOST:
            area, limit = CATBOOST[data]
            words = f"{chosen[WITH]}: AUC {auc[WITH]:.4f}, log loss {loss[WITH]:.4f}"
            margin = lowest([auc[WITH] - area, limit - loss[WITH]])
            claim = f"{data}: the best with history is above CatBoost's {area} and below its {limit}"
            found.append(Verdict(claim, margin, seeds, words))
    return found


STUDY = Study(
    id="history",
    paper="History fields (not in the paper)",
    asks="What do all thirteen models gain from the past of users, items and their pairs?",
    keys=("data", "model", "history"),
    columns=(
        Column("auc", "AUC", ".4f", high, "auc_sd"),
        Column("log_loss", "Log loss", ".5f", low, "log_loss_sd"),
        Column("valid_log_loss", "Valid log loss", ".5f", low),
        Column("parameters", "Parameters", ",.0f"),
        Column("seconds", "Seconds", ",.0f"),
    ),
    plan=plan,
    claims=claims,
    draw=figures.panels("{model}", "{history}"),
    budget=6,
)
