"""Who enters a comparison: the models that were named, or a few quick and strong ones; and the best as a bundle."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldwise import blend
from fieldwise.data.rates import FOLDER
from fieldwise.errors import ConfigError, unknown
from fieldwise.files import whole_folder
from fieldwise.jobs import Job
from fieldwise.models import registry

ALL = "all"
BEST = "best"
# Chosen on validation rows of public sets (docs/training.md): beside rates, ids are best read in their order.
TREES: Mapping[str, Any] = {
    "model.rounds": 2000,
    "model.depth": 6,
    "model.lr": 0.05,
    "model.min_child_weight": 5.0,
    "model.subsample": 0.8,
    "model.colsample": 0.5,
    "model.categories": 10,
}
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

    MODEL-rates reads the rates of categories that `prepare` left in a folder inside of the prepared one.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or _usual(data)
    found = [_entrant(name, data) for name in (registry() if names == [ALL] else names)]
    if importlib.util.find_spec("xgboost") is None and any(one.model == "gbdt" for one in found):
        return [one for one in found if one.model != "gbdt"], [NO_XGBOOST]
    return found, []


def _usual(data: Path) -> list[str]:
    """Trees, LR and FNN on rates, where there are any, and models of products on the ids."""
    told = f"-{FOLDER}" if (data / FOLDER / "data.json").exists() else ""
    return [f"gbdt{told}", f"lr{told}", f"fnn{told}", "fm", "ipnn"]


def _entrant(name: str, data: Path) -> Entrant:
    model = name.removesuffix(f"-{FOLDER}")
    if model not in registry():
        raise ConfigError(unknown("model", name, registry()))
    if model == name:
        return Entrant(name, model, data)
    if not (data / FOLDER / "data.json").exists():
        way_out = "prepare leaves one without --history, for up to a million rows with categories"
        raise ConfigError(f"'{name}' reads the folder {data / FOLDER}, which is not there; {way_out}")
    return Entrant(name, model, data / FOLDER, TREES if model == "gbdt" else {})


def keep_best(kept: Mapping[str, Sequence[Job]], folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Leaves the model of the lowest validation log loss in out/best, all of its seeds as one; returns what it is."""
    losses = {name: fmean(_valid_loss(job.out) for job in jobs) for name, jobs in kept.items()}
    name = min(losses, key=lambda one: losses[one])
    runs = [job.out for job in kept[name]]
    best = out / BEST
    shutil.rmtree(best, ignore_errors=True)
    if len(runs) > 1 or name == blend.NAME:
        blend.blend(runs, best, folders)
    else:
        with whole_folder(best, "DONE") as work:
            shutil.copytree(runs[0], work, dirs_exist_ok=True)
    return {"model": name, "valid_log_loss": losses[name], "bundle": str(best)}


def _valid_loss(run: Path) -> float:
    return float(json.loads((run / "report.json").read_text(encoding="utf-8"))["valid"]["log_loss"])
