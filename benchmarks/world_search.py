"""Settings of the studies' look-alikes, by the same effort for every model: fieldwise/studies/recipes/SET/MODEL.toml.

    python benchmarks/world_search.py --out search [--sets criteo,avazu] [--models fnn,pin] [--trials 10]
        [--rows 3000000] [--device cuda] [--jobs 8] [--size medium] [--write]

Every model gets the same settings to try, spread evenly over logarithmic ranges: learning rate, start of the vectors
and their L2. They are trained on a world that no study has, with the shapes of the recipes, in one pass as the studies
are, and the least log loss of the validation rows decides; test rows are not looked at. Finished runs are kept: the
same command goes on after a kill, and more --trials add to those there. --write puts what was chosen into the recipes.
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
RANGES = {"train.lr": (3e-4, 1e-2), "train.init_scale": (0.01, 0.3), "train.l2": (1e-5, 1e-2)}


def trials(count: int) -> list[dict[str, float]]:
    """Settings to try: the same for every model, and the same first ones whatever their number."""
    low, high = np.log(list(RANGES.values())).T
    # Points n g^-1, n g^-2, n g^-3 modulo 1, with g^4 = g + 1, fill a cube evenly from the first of them on.
    steps = 1.2207440846057596 ** -np.arange(1.0, len(RANGES) + 1)
    points = (0.5 + np.outer(np.arange(1, count + 1), steps)) % 1
    drawn = np.exp(low + points * (high - low))
    return [dict(zip(RANGES, (float(f"{value:.3g}") for value in point), strict=True)) for point in drawn]


def job(data: str, model: str, number: int, drawn: dict[str, float], asked: argparse.Namespace) -> Job:
    settings: dict[str, Any] = lookalikes.settings(model, data, asked.size) | drawn
    # A compiler would take longer than these runs.
    settings |= {"train.epochs": 1, "train.compile": False, "device": asked.device}
    name = f"{data} {model} {number}"
    place = asked.out / "runs" / data / model / str(number)
    return Job(name, name, asked.out / "data" / data, place, None, settings, ("checkpoint", "bundle"))


def result_of(run: Path) -> dict[str, float]:
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return {"valid_log_loss": report["valid"]["log_loss"], "rows_per_s": report["rows_per_s"]}


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
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--rows", type=int, default=3_000_000)
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
            found = {n: result_of(run.out) for n, run in enumerate(runs) if run.done}
            if not found:
                print(f"{data} {model}: no run ended: {failures.get(runs[0].group, '')}")
                continue
            best = min(found, key=lambda n: found[n]["valid_log_loss"])
            rows += [{"data": data, "model": model, **found[n], **drawn[n]} for n in found]
            least = found[best]["valid_log_loss"]
            print(f"{data} {model}: {least:.5f} of {len(found)} runs, {json.dumps(drawn[best])}", flush=True)
            if asked.write:
                write(data, model, drawn[best])
    with (asked.out / "search.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["data", "model", "valid_log_loss", "rows_per_s", *RANGES])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
