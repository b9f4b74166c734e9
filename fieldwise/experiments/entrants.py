"""Who enters a comparison: the models that were named, or a few quick and strong ones; and the best as a bundle."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.files import linked, whole_folder
from fieldwise.config.settings import NEWTON
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.on_demand import made, offered
from fieldwise.data.encode.rates import FOLDER, FOLDS, ORDER
from fieldwise.data.encode.refit import FOLDER as REFIT
from fieldwise.data.encode.staged import Progress, quiet
from fieldwise.experiments.folds import Folded
from fieldwise.experiments.jobs import Job
from fieldwise.nn.tree_models import TREES
from fieldwise.train import blend
from fieldwise.train.curves import affordable
from fieldwise.train.race import Race

# What a report says of later rows.
OUTLOOK = ("expected_calibration", "level_kept", "level_moved", "level_sd", "views")
ALL = "all"
# The models since the paper (docs/models.md), beside IPNN to measure them by.
FIELD = "field"
BEST = "best"
# Chosen on validation rows of public sets (docs/training.md). Trees of one seed would differ in nothing from those of
# another without drawn rows and columns. A split that may send any set of a category's values left finds one that suits
# few rows by chance: one value against all others is better.
DRAWN: Mapping[str, Any] = {"model.rounds": 3000, "model.subsample": 0.8, "model.ranks_alone": True}
BOOSTED: Mapping[str, Any] = {**DRAWN, "model.lr": 0.05, "model.onehot": 100}
SYMMETRIC: Mapping[str, Any] = {**DRAWN, "model.lr": 0.04}
# A tree that lacks a column learns to do without its rates, as rows of new values must. Without rates each tree has
# all columns, and each split half of them; it is deeper, as a rate says alone what takes several splits of ids.
WITH_RATES = {"model.depth": 4, "model.colsample": 0.5}
WITHOUT_RATES = {"model.depth": 5, "model.colsample_node": 0.5}
# What models on rates have where no recipe says: beside rates, ids are best read in their order; and a rate is a
# number, which a short vector holds, at half the price.
ON_RATES: Mapping[str, Mapping[str, Any]] = {
    "gbdt": {**BOOSTED, **WITH_RATES, "model.categories": 10},
    "symmetric": {**SYMMETRIC, "model.categories": 10},
    "fnn": {"model.dim": 16},
}
# On fewer rows than this FNN on rates needs no more: as good on public sets (docs/training.md), at half the price.
# IPNN, which reads the ids alone, would answer new values worse. LR would not come to its end in the epochs it has.
FEW_ROWS = 100_000
# Below this, on six public sets, symmetric trees on rates lose 2.4 % less than others; above it, on seven, 1.2 % more.
VERY_FEW = 12_000
# Up to here they are better on the ids and numbers alone; above it they gain nothing for two or three times the time.
SYMMETRIC_ROWS = 20_000
ON_FEW: Mapping[str, Mapping[str, Any]] = {"fnn": {"model.hidden": (200, 200)}, "lr": {"train.lr": 0.02}}
# LR on few rows and few ids is fitted at once, as lines and curves of the numbers themselves: better than on rates.
# Folds and the refit have more rows and more ids: so there must be room. Where rows are very few besides, there are no
# networks: validation chose one on three of ten public sets, which were 1.6 to 3 % better without (one seed).
AT_ONCE, ROOM = {"train.optimizer": NEWTON}, 0.5
# More rows bear more trees.
MORE_ROUNDS = 1.1
NO_XGBOOST = "gbdt is left out: it needs XGBoost, which is not installed (pip install fieldwise[gbdt])"


@dataclass(frozen=True)
class Entrant:
    """A model in a comparison: its name there, the prepared folder that it reads, and settings where no recipe says."""

    name: str
    model: str
    data: Path
    settings: Mapping[str, Any] = field(default_factory=dict)

    def job(self, seed: int, out: Path, recipes: Path | None, device: str) -> Job:
        """The run of one seed."""
        recipe = recipes / f"{self.model}.toml" if recipes else None
        given = recipe if recipe and recipe.is_file() else None
        chosen = {"model.name": self.model, "seed": seed, **({"device": device} if device else {})}
        settings = chosen if given else {**self.settings, **chosen}
        return Job(self.name, f"{self.name} seed {seed}", self.data, out / self.name / f"seed{seed}", given, settings)


def entrants(text: str, data: Path) -> tuple[list[Entrant], list[str]]:
    """The models of a comma-separated list, `all`, or the usual ones for an empty one; and a note on who is left out.

    `field` in the list stands for the models since the paper. MODEL-rates and MODEL-order read rates of categories, in
    folders inside of the prepared one.
    """
    asked = [name.strip() for name in text.split(",") if name.strip()]
    found = [_entrant(name, data) for name in _named(asked)] or _usual(data)
    if importlib.util.find_spec("xgboost") is None and any(one.model == "gbdt" for one in found):
        return [one for one in found if one.model != "gbdt"], [NO_XGBOOST]
    return found, []


def _named(asked: Sequence[str]) -> list[str]:
    """The names of a list, without the words in it that stand for several."""
    if not asked:
        return []
    # Here: to know all networks takes torch, which the usual models on few rows do without.
    from fieldwise.later_models import LATER
    from fieldwise.models import registry

    of_field = ("ipnn", *(build.__name__ for build in LATER))
    names = list(dict.fromkeys(one for name in asked for one in (of_field if name == FIELD else [name])))
    every = list(registry())
    for name in names:
        if names != [ALL] and model_of(name) not in every:
            raise ConfigError(unknown("model", name, every))
    return every if names == [ALL] else names


def _usual(data: Path) -> list[Entrant]:
    """Trees, LR and FNN on rates, where there are any, and models of products on the ids; cheap ones first. Very few
    rows of few ids have trees and LR alone.

    Symmetric trees are the better ones on numbers and ids alone, and on rates where rows are very few.
    """
    suffix = f"-{FOLDER}" if offered(data / FOLDER) else ""
    rows = Dataset.open(data)
    train = rows.parts["train"].rows
    few = train < FEW_ROWS
    # Without categories only numbers are finer there, of which trees know the ranks. With them rates say more, but on
    # few rows they overfit where numbers matter most.
    rates = offered(data / ORDER)
    on_rates = [f"gbdt-{FOLDER}", f"{'symmetric' if train < VERY_FEW else 'gbdt'}-{ORDER}"] if rates else []
    alone = ["symmetric"] if train < SYMMETRIC_ROWS else ["gbdt"] if few else []
    trees = list(dict.fromkeys([*on_rates, *alone, *([] if rates else ["gbdt"])]))
    at_once = affordable(rows.layout, train, ROOM)
    more = {"gbdt": {**BOOSTED, **WITHOUT_RATES}, "symmetric": SYMMETRIC, "lr": AT_ONCE if at_once else {}}
    if suffix and few:
        more |= {f"{model}{suffix}": dict(own) for model, own in ON_FEW.items()}
    linear = ["lr"] if at_once else ["fm", f"lr{suffix}"]
    networks = [] if at_once and train < VERY_FEW else [*(["fm"] if at_once else []), "ipnn", f"fnn{suffix}"]
    found = [_entrant(name, data) for name in (*trees, *linear, *networks)]
    return [replace(one, settings={**more.get(one.name, {}), **one.settings}) for one in found]


def model_of(name: str) -> str:
    """The model of an entrant's name, whatever it reads."""
    model, _, folder = name.rpartition("-")
    return model if folder in FOLDS else name


def _entrant(name: str, data: Path) -> Entrant:
    model = model_of(name)
    if model == name:
        return Entrant(name, model, data)
    folder = data / name.removeprefix(f"{model}-")
    if not offered(folder):
        way_out = "prepare keeps rows for it without --history, up to a million of them with categories"
        raise ConfigError(f"'{name}' reads the folder {folder}, which is not there; {way_out}")
    return Entrant(name, model, folder, ON_RATES.get(model, {}))


def keep_best(kept: Mapping[str, Sequence[Job]], folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Leaves the model of the lowest validation log loss in out/best, all of its seeds as one; returns what it is, and
    the runs in `out` that it is made of."""
    losses = _losses(kept, out)
    # Several models err apart: a blend gives way to one of them only if that is better by more than chance.
    doubt = max((_report(job.out).get("cross_fitted_se", 0.0) for job in kept.get(blend.NAME, ())), default=0.0)
    name = min(losses, key=lambda one: losses[one] - (doubt if one == blend.NAME else 0.0))
    # A blend of one seed without members of weight 0 is the best as it is.
    alone = len(kept[name]) == 1 and all(member["weight"] for member in _report(kept[name][0].out).get("members", ()))
    runs = [run for job in kept[name] for run in (not alone and _runs(job.out)) or [job.out]]
    best = _leave(runs, folders, out)
    made_of = [str(run.relative_to(out)) for run in _runs(best) or runs]
    found = {"model": name, "valid_log_loss": losses[name], "bundle": str(best), "runs": made_of}
    # Of what was measured on test rows, which the runs of a refit no longer are.
    return found | {key: value for key, value in _report(best).items() if key in OUTLOOK}


def _losses(kept: Mapping[str, Sequence[Job]], out: Path) -> dict[str, float]:
    """What the models are chosen by; where there were folds, those that were close enough to be in them."""
    folded = Folded.of(out)
    losses = {name: fmean(_valid_loss(job.out) for job in jobs) for name, jobs in kept.items()}
    if folded is None:
        return losses
    return {
        name: folded.loss(name) if name in folded.names else losses[name]
        for name in kept
        if name in {*folded.names, blend.NAME}
    }


def beside(runs: Sequence[Path], out: Path) -> blend.Evidence | None:
    """What folds say of these runs beside their validation rows, each of which is out/.../NAME/seedN."""
    folded = Folded.of(out)
    return folded.beside([run.parent.name for run in runs]) if folded else None


def again(best: Mapping[str, Any], jobs: Sequence[Job], data: Path, out: Path, progress: Progress = quiet) -> list[Job]:
    """The runs of the best once more, on the folder with the test rows among the training rows, which is made where it
    is not there; none where it cannot be."""
    if not offered(data / REFIT):
        return []
    return [
        replace(
            job,
            name=f"{job.name}, with the test rows",
            settings=job.settings | _length(job),
            race=Race(),
            data=made(data / REFIT / job.data.relative_to(data), progress),
            out=out / REFIT / job.out.relative_to(out),
        )
        for job in jobs
        if is_part(job, best, out)
    ]


def is_part(job: Job, best: Mapping[str, Any], out: Path) -> bool:
    """Whether the best is made of this run, among others."""
    return str(job.out.relative_to(out)) in best["runs"]


def _length(job: Job) -> dict[str, Any]:
    """As many epochs as were best before, or a few more rounds: nothing is trained only to be dropped."""
    if job.settings.get("train.optimizer") == NEWTON:
        return {}
    best = _report(job.out)["best_epoch"]
    if job.settings["model.name"] in TREES:
        return {"model.rounds": max(1, round(MORE_ROUNDS * best))}
    return {"train.epochs": max(1, best)}


def keep_again(jobs: Sequence[Job], out: Path) -> dict[str, Any]:
    """Leaves the runs of `again` in out/best; returns how many rows they have learnt, and the validation log loss."""
    folders = list(dict.fromkeys(job.data for job in jobs))
    best = _leave([job.out for job in jobs], folders, out)
    return {"refit_rows": Dataset.open(folders[0]).parts["train"].rows, "refit_valid_log_loss": _valid_loss(best)}


def _leave(runs: Sequence[Path], folders: Sequence[Path], out: Path) -> Path:
    """Leaves several runs as one blend, or a single one as it is."""
    best = out / BEST
    shutil.rmtree(best, ignore_errors=True)
    if len(runs) > 1:
        blend.blend(runs, best, folders, beside=beside(runs, out), pairs=False)
    else:
        with whole_folder(best, "DONE") as work:
            shutil.copytree(runs[0], work, dirs_exist_ok=True, copy_function=linked)
    return best


def _runs(run: Path) -> list[Path]:
    """The runs that a blend is made of, without those of weight 0; none of a run that is no blend."""
    return [Path(member["run"]) for member in _report(run).get("members", ()) if member["weight"]]


def _valid_loss(run: Path) -> float:
    """What a run is chosen by: the log loss of validation rows that its weights and its calibration did not see."""
    report = _report(run)
    return float(report.get("cross_fitted", report["valid"]["log_loss"]))


def _report(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return found
