"""Recipes for models on one prepared folder: settings drawn from a space, then further seeds of the best.

    python benchmarks/recipe_search.py DATA benchmarks/spaces/frappe_pin.toml --out search [--models dcnv2,wukong]
        [--trials 100] [--best 5] [--seeds 3] [--device cuda] [--jobs 8] [--seconds 500] [--recipes DIR]

Every draw is trained once; the --best of least validation log loss with --seeds seeds each, and the least mean of these
is the recipe that is printed, or written to DIR/MODEL.toml. With --models each of them tries the same draws of the
space, without the options that it does not have. Test rows are not looked at: `finish` reports them, this script does
not read that. Finished runs are kept, so that the same command goes on; --seconds stops before a new batch of runs
would begin.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fieldwise.config.files import write_whole
from fieldwise.config.toml import dumps
from fieldwise.experiments.jobs import Job, run_all
from fieldwise.models import options

Settings = dict[str, Any]


def drawn(space: dict[str, Settings], number: int) -> Settings:
    """The settings of one trial, the same whatever the number of trials."""
    rng = np.random.default_rng([20, number])
    found: Settings = {}
    for section, names in space.items():
        for name, values in names.items():
            value: Any = values
            if isinstance(values, dict):
                value = float(f"{np.exp(rng.uniform(*np.log([values['low'], values['high']]))):.3g}")
            elif isinstance(values, list):
                value = values[int(rng.integers(len(values)))]
            found[f"{section}.{name}"] = value
    return found


@dataclass(frozen=True)
class Search:
    """The trials of one model."""

    model: str
    trials: list[Settings]
    asked: argparse.Namespace

    @classmethod
    def of(cls, space: dict[str, Settings], model: str, asked: argparse.Namespace) -> Search:
        space = space | {"model": space["model"] | {"name": model}}
        known = {"name", *options(model)}
        trials = [drawn(space, number) for number in range(asked.trials)]
        kept = [
            {name: value for name, value in one.items() if not name.startswith("model.") or name[6:] in known}
            for one in trials
        ]
        return cls(model, kept, asked)

    def job(self, number: int, seed: int) -> Job:
        name = f"{self.model} {number} seed {seed}"
        place = self.asked.out / self.model / f"{number}-{seed}"
        settings = self.trials[number] | {"seed": seed, "device": self.asked.device}
        return Job(name, name, self.asked.data, place, None, settings, ("checkpoint", "bundle"))

    @property
    def first(self) -> list[Job]:
        return [self.job(number, 0) for number in range(len(self.trials))]

    @property
    def best(self) -> list[int]:
        """The trials to train again, the best first."""
        losses = {number: valid(run.out)[0] for number, run in enumerate(self.first) if run.done}
        return sorted(losses, key=lambda number: losses[number])[: self.asked.best]

    @property
    def again(self) -> dict[int, list[Job]]:
        return {number: [self.job(number, seed) for seed in range(self.asked.seeds)] for number in self.best}

    def tell(self) -> None:
        """Prints the best trials, and prints or writes the recipe."""
        means = {}
        for number, runs in self.again.items():
            found = [valid(run.out) for run in runs if run.done]
            means[number] = fmean(loss for loss, _ in found)
            spread = stdev(loss for loss, _ in found) if len(found) > 1 else 0.0
            area = fmean(area for _, area in found)
            said = f"log loss {means[number]:.4f} +- {spread:.4f}, AUC {area:.4f}, {len(found)} seeds"
            print(f"{self.model} {number}: {said}", flush=True)
        if not means:
            print(f"{self.model}: no run is done", flush=True)
            return
        chosen, done = min(means, key=lambda number: means[number]), sum(run.done for run in self.first)
        recipe: dict[str, Settings] = {}
        for name, value in self.trials[chosen].items():
            section, _, key = name.partition(".")
            recipe.setdefault(section, {})[key] = value
        why = (
            f"# Chosen by validation log loss among {done} runs: {means[chosen]:.4f}, mean of {self.asked.seeds} seeds."
        )
        text = f"{why}\n\n{dumps(recipe)}"
        if self.asked.recipes:
            write_whole(self.asked.recipes / f"{self.model}.toml", text)
        else:
            print(text)


def valid(run: Path) -> tuple[float, float]:
    """Log loss and AUC of the validation rows."""
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))["valid"]
    return float(report["log_loss"]), float(report["auc"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("space", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--best", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--models", default="")
    parser.add_argument("--recipes", type=Path)
    asked = parser.parse_args()
    began = time.monotonic()
    space = tomllib.loads(asked.space.read_text(encoding="utf-8"))
    names = asked.models.split(",") if asked.models else [space["model"]["name"]]
    searches = [Search.of(space, name, asked) for name in names]
    # Trial by trial, so that all models have had as many when the time is up.
    first = list(itertools.chain.from_iterable(zip(*(search.first for search in searches), strict=True)))
    for start in range(0, len(first), 4 * asked.jobs):
        if time.monotonic() - began > asked.seconds:
            break
        run_all(first[start : start + 4 * asked.jobs], asked.jobs)
    run_all([run for search in searches for runs in search.again.values() for run in runs], asked.jobs)
    for search in searches:
        search.tell()


if __name__ == "__main__":
    main()
