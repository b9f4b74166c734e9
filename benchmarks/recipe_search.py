"""A recipe for one model on one prepared folder: settings drawn from a space, then further seeds of the best.

    python benchmarks/recipe_search.py DATA benchmarks/spaces/frappe_pin.toml --out search [--trials 100] [--best 5]
        [--seeds 3] [--device cuda] [--jobs 8] [--seconds 500]

Every draw is trained once; the --best of least validation log loss with --seeds seeds each, and the least mean of these
is the recipe that is printed. Test rows are not looked at: `finish` reports them, this script does not read that.
Finished runs are kept, so that the same command goes on; --seconds stops before a new batch of runs would begin.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fieldwise.config.toml import dumps
from fieldwise.experiments.jobs import Job, run_all

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


def job(asked: argparse.Namespace, settings: Settings, number: int, seed: int) -> Job:
    name, place = f"{number} seed {seed}", asked.out / "runs" / f"{number}-{seed}"
    own = settings | {"seed": seed, "device": asked.device}
    return Job(name, name, asked.data, place, None, own, ("checkpoint", "bundle"))


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
    asked = parser.parse_args()
    began = time.monotonic()
    space = tomllib.loads(asked.space.read_text(encoding="utf-8"))
    trials = [drawn(space, number) for number in range(asked.trials)]
    first = [job(asked, settings, number, 0) for number, settings in enumerate(trials)]
    for start in range(0, len(first), 4 * asked.jobs):
        if time.monotonic() - began > asked.seconds:
            break
        run_all(first[start : start + 4 * asked.jobs], asked.jobs)
    losses = {number: valid(run.out)[0] for number, run in enumerate(first) if run.done}
    best = sorted(losses, key=lambda number: losses[number])[: asked.best]
    again = {number: [job(asked, trials[number], number, seed) for seed in range(asked.seeds)] for number in best}
    run_all([run for runs in again.values() for run in runs], asked.jobs)
    means = {}
    for number, runs in again.items():
        found = [valid(run.out) for run in runs if run.done]
        means[number] = fmean(loss for loss, _ in found)
        spread = stdev(loss for loss, _ in found) if len(found) > 1 else 0.0
        area = fmean(area for _, area in found)
        print(f"{number}: log loss {means[number]:.4f} +- {spread:.4f}, AUC {area:.4f}, {len(found)} seeds")
    chosen = min(means, key=lambda number: means[number])
    recipe: dict[str, Settings] = {}
    for name, value in trials[chosen].items():
        section, _, key = name.partition(".")
        recipe.setdefault(section, {})[key] = value
    print(f"# chosen by validation log loss, {means[chosen]:.4f}, among {len(losses)} runs\n{dumps(recipe)}")


if __name__ == "__main__":
    main()
