"""Settings of the studies' look-alikes, by the same effort for every model: fieldwise/studies/recipes/SET/MODEL.toml.

    python benchmarks/world_search.py --out search [--sets criteo,avazu] [--models fnn,pin] [--trials 8]
        [--rows 1000000] [--device cuda] [--jobs 8] [--size medium] [--write]

Every model gets the same settings to try, drawn once: learning rate, start of the vectors and their L2, each from a
logarithmic range. They are trained on a world that no study has, with the shapes of the recipes, and the least log loss
of the validation rows decides; test rows are not looked at. Finished runs are kept: the same command goes on after a
kill, and more --trials add to those there. --write puts what was chosen into the recipes.
"""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.config.files import write_whole
from fieldwise.config.toml import dumps
from fieldwise.experiments.jobs import Job, run_all
from fieldwise.studies import lookalikes, sources

# A world that no study has.
SEED = 100
RANGES = {"train.lr": (5e-4, 1e-2), "train.init_scale": (0.01, 0.3), "train.l2": (1e-4, 1e-2)}
EPOCHS = 3


def trials(count: int) -> list[dict[str, float]]:
    """Settings to try: the same for every model, and the same first ones whatever their number."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([SEED, number])
        drawn = {name: float(np.exp(rng.uniform(*np.log(ends)))) for name, ends in RANGES.items()}
        found.append({name: float(f"{value:.3g}") for name, value in drawn.items()})
    return found


def job(data: str, model: str, number: int, drawn: dict[str, float], asked: argparse.Namespace) -> Job:
    settings: dict[str, Any] = lookalikes.settings(model, data, asked.size) | drawn
    settings |= {"train.epochs": EPOCHS, "device": asked.device}
    name = f"{data} {model} {number}"
    return Job(name, name, asked.out / "data" / data, asked.out / "runs" / data / model / str(number), None, settings)


def loss_of(run: Path) -> float:
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return float(report["valid"]["log_loss"])


def write(data: str, model: str, chosen: dict[str, float]) -> None:
    """Puts what was chosen into a recipe; the rest of it stays."""
    path = lookalikes.RECIPES / data / f"{model}.toml"
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    recipe["train"] |= {name.removeprefix("train."): value for name, value in chosen.items()}
    write_whole(path, dumps(recipe))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(lookalikes.SETS))
    parser.add_argument("--models", default=",".join(name for name in lookalikes.MODELS if name != "gbdt"))
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", default="medium", help="whose shapes and rates: small, medium or paper")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    sets, models = asked.sets.split(","), asked.models.split(",")
    for data in sets:
        if not (asked.out / "data" / data / "data.json").exists():
            rate = lookalikes.RATES[asked.size].get(data)
            sources.world(data, asked.rows, SEED, rate=rate)(asked.out / "data" / data)
    drawn = trials(asked.trials)
    # The slow models first, so that no one of them is left running alone in the end.
    order = sorted(models, key=lambda name: -lookalikes.MODELS.index(name))
    jobs = [job(data, model, n, drawn[n], asked) for model in order for data in sets for n in range(len(drawn))]
    failures = run_all(jobs, asked.jobs)
    rows = []
    for data in sets:
        for model in models:
            runs = [job(data, model, n, drawn[n], asked) for n in range(len(drawn))]
            losses = {n: loss_of(run.out) for n, run in enumerate(runs) if run.done}
            if not losses:
                print(f"{data} {model}: no run ended: {failures.get(runs[0].group, '')}")
                continue
            best = min(losses, key=lambda n: losses[n])
            rows += [{"data": data, "model": model, "valid_log_loss": losses[n], **drawn[n]} for n in losses]
            print(f"{data} {model}: {losses[best]:.5f} of {len(losses)} runs, {json.dumps(drawn[best])}", flush=True)
            if asked.write:
                write(data, model, drawn[best])
    with (asked.out / "search.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["data", "model", "valid_log_loss", *RANGES])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
