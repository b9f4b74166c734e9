"""What a change of the network or of training gains over its base: the same number of strengths and seeds for each.

    python benchmarks/lifts.py DATA=RECIPE.toml [DATA,DATA,DATA=RECIPE.toml ...] --out OUT [--lifts members,cosine]

For each prepared folder and recipe, all strengths of the base and of each lift are trained with seed 0; the one with
the least log loss of the validation rows is trained with all seeds. Differences of the test rows are paired by seed.
Of several folders, such as other splits of one set, seed s takes number s: then the error is also that of the choice of
rows. Finished runs are kept, so that a killed call goes on. Leaves OUT/lifts.json and prints a table; a star is a gain
of two standard errors. A new lift is one more line of `strengths`. docs/lab/2026-11-19-lifts.md has what was tried.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.config.files import write_whole
from fieldwise.config.settings import TrainSettings
from fieldwise.experiments.jobs import Job

Settings = dict[str, Any]
HEAD = "| | log loss | gain | AUC | gain | CPU s | best epoch | strength |\n|---|---|---|---|---|---|---|---|"


def strengths(recipe: Settings, epochs: int) -> dict[str, list[Settings]]:
    """The settings that each lift tries, and the base; `epochs` are those that the base took."""
    train = dataclasses.asdict(TrainSettings()) | recipe["train"]
    lr, penalty = train["lr"], "l2_full" if train["l2_full"] else "l2"
    falling = {"train.schedule": "cosine", "train.patience": 1000}
    return {
        "base": [{}, {"train.lr": 2 * lr}, {f"train.{penalty}": 3 * train[penalty]}],
        "members": [{"model.members": 8}, {"model.members": 16}, {"model.members": 8, "train.lr": 2 * lr}],
        "cosine": [
            {**falling, "train.lr": times * lr, "train.epochs": number}
            for times, number in ((1, epochs), (2, epochs), (2, max(2, epochs // 2)))
        ],
    }


def trained(data: Path, recipe: Path, out: Path, settings: Settings, seed: int) -> dict[str, Any]:
    """The report of a run, with the processor seconds that it took."""
    known, began = out.with_suffix(".cpu"), time.process_time()
    job = Job(str(out), str(out), data, out, recipe, {**settings, "seed": seed}, ("checkpoint", "bundle"))
    if failed := job.attempt():
        raise SystemExit(f"{out}: {failed}")
    if not known.exists():
        write_whole(known, str(time.process_time() - began))
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {**report, "cpu": float(known.read_text(encoding="utf-8"))}


def lift(folders: list[Path], recipe: Path, out: Path, choices: list[Settings], seeds: int) -> dict[str, Any]:
    """What the runs of the chosen strength found, one for each seed."""
    first = [trained(folders[0], recipe, out / f"{n}-0", settings, 0) for n, settings in enumerate(choices)]
    losses = [report["valid"]["log_loss"] for report in first]
    best = int(np.argmin(losses))
    rest = [
        trained(folders[seed % len(folders)], recipe, out / f"{best}-{seed}", choices[best], seed)
        for seed in range(1, seeds)
    ]
    reports = [first[best], *rest]
    found: dict[str, Any] = {"strength": choices[best], "valid_by_strength": losses}
    for part in ("valid", "test"):
        found[part] = {name: [report[part][name] for report in reports] for name in ("log_loss", "auc")}
    return found | {name: [report[name] for report in reports] for name in ("cpu", "epochs", "best_epoch")}


def line(name: str, base: dict[str, Any], own: dict[str, Any]) -> str:
    """A row of the table."""
    cells = []
    for metric, sign in (("log_loss", -1), ("auc", 1)):
        gains = sign * (np.array(own["test"][metric]) - np.array(base["test"][metric]))
        mean, error = gains.mean(), gains.std(ddof=1) / np.sqrt(len(gains))
        gain = f"{mean:+.5f} ± {error:.5f}{' *' if mean > 2 * error else ''}"
        cells += [f"{np.mean(own['test'][metric]):.5f}", "" if own is base else gain]
    epochs = f"{np.mean(own['best_epoch']):.1f} of {np.mean(own['epochs']):.1f}"
    words = ", ".join(f"{key.split('.')[1]}={value}" for key, value in own["strength"].items())
    return "| " + " | ".join([name, *cells, f"{np.mean(own['cpu']):.0f}", epochs, words]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="DATA=RECIPE.toml")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lifts", default="members")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    if asked.seeds < 2:
        parser.error(f"an error of the mean takes at least two seeds, found {asked.seeds}")
    results: dict[str, dict[str, Any]] = {}
    for one in asked.sets:
        places, _, path = one.partition("=")
        folders, recipe = [Path(place) for place in places.split(",")], Path(path)
        settings = tomllib.loads(recipe.read_text(encoding="utf-8"))
        name = f"{folders[0].name} {settings['model']['name']}"
        print(f"\n{name}\n\n{HEAD}", flush=True)
        out = asked.out / name.replace(" ", "-")
        base = lift(folders, recipe, out / "base", strengths(settings, 1)["base"], asked.seeds)
        results[name] = {"base": base}
        print(line("base", base, base), flush=True)
        choices = strengths(settings, round(float(np.mean(base["epochs"]))))
        for own in asked.lifts.split(","):
            results[name][own] = lift(folders, recipe, out / own, choices[own], asked.seeds)
            print(line(own, base, results[name][own]), flush=True)
        write_whole(asked.out / "lifts.json", json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
