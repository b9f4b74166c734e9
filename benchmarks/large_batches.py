"""What a batch s times as large costs in accuracy: train.batch_scale, and simpler ways, beside the base batch.

    python benchmarks/large_batches.py DATA=RECIPE.toml [DATA=RECIPE.toml ...] --out OUT [--scale 8] [--seeds 3]

For each prepared folder and recipe, the base batch is trained with half its rate, its rate and twice its rate and seed
0; the one with the least log loss of the validation rows is the base, and every way of `ways` starts from it, with as
many epochs at most. Each is trained with all seeds. Differences to the base are of test rows, paired by seed. Finished
runs are kept, so that a killed call goes on. Leaves OUT/large_batches.json and prints a table for each set.
docs/lab/2026-11-19-large-batches.md has what was found.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.config.files import write_whole
from fieldwise.experiments.jobs import Job

Settings = dict[str, Any]
HEAD = (
    "| | AUC | to the base | log loss | to the base | validation log loss | best epoch |\n|---|---|---|---|---|---|---|"
)
WAYS = "base,scaled,alone,linear"


def ways(train: Settings, scale: float) -> dict[str, Settings]:
    """The settings of each way to train with a batch `scale` times that of the recipe."""
    rows, lr = round(train["batch_size"] * scale), train["lr"]
    larger, scaled = {"train.batch_size": rows}, {"train.batch_scale": scale}
    return {
        "base": {},
        "scaled": scaled,
        "alone": larger,
        "linear": {**larger, "train.lr": lr * scale},
        "root": {**larger, "train.lr": lr * scale**0.5},
        "unclipped": {**scaled, "train.row_clip": 0},
        # As if the clip compared lengths with the gradient of the sum over rows.
        "sums": {**scaled, "train.row_clip": 1 / rows, "train.row_clip_least": 1e-5 / rows},
    }


def trained(data: Path, recipe: Path, out: Path, settings: Settings) -> dict[str, Any]:
    """The report of a run."""
    job = Job(str(out), str(out), data, out, recipe, settings, ("checkpoint", "bundle"))
    if failed := job.attempt():
        raise SystemExit(f"{out}: {failed}")
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report


def base_rate(data: Path, recipe: Path, out: Path, lr: float) -> float:
    """The rate with the least validation log loss for the base batch, of three."""
    losses = {}
    for rate in (lr / 2, lr, 2 * lr):
        report = trained(data, recipe, out / f"base-{rate:g}-0", {"train.lr": rate, "seed": 0})
        losses[rate] = report["valid"]["log_loss"]
    return min(losses, key=losses.__getitem__)


def measured(data: Path, recipe: Path, out: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """The test metrics of each way and seed."""
    train = tomllib.loads(recipe.read_text(encoding="utf-8"))["train"]
    lr = base_rate(data, recipe, out, train["lr"])
    found: dict[str, Any] = {"rate": lr}
    known = ways(train | {"lr": lr}, asked.scale)
    for name in asked.ways.split(","):
        settings = {"train.lr": lr} | known[name]
        folder = out / f"{name}-{settings['train.lr']:g}"
        runs = [
            trained(data, recipe, folder.with_name(f"{folder.name}-{seed}"), settings | {"seed": seed})
            for seed in range(asked.seeds)
        ]
        found[name] = {key: [run["test"][key] for run in runs] for key in ("auc", "log_loss")}
        found[name] |= {
            "valid": [run["valid"]["log_loss"] for run in runs],
            "epoch": [run["best_epoch"] for run in runs],
        }
        print(row(name, found), flush=True)
    return found


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table: means over seeds, and differences to the base with their standard error."""
    cells = [name]
    for key in ("auc", "log_loss"):
        own, base = np.array(found[name][key]), np.array(found["base"][key])
        gap = own - base
        error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else float("nan")
        cells += [f"{own.mean():.4f}", "" if name == "base" else f"{gap.mean():+.4f} ± {error:.4f}"]
    valid, epoch = (np.mean(found[name][key]) for key in ("valid", "epoch"))
    return f"| {' | '.join([*cells, f'{valid:.4f}', f'{epoch:.1f}'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="DATA=RECIPE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", default=WAYS)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for item in asked.sets:
        data, recipe = map(Path, item.split("="))
        name = f"{data.name}-{recipe.stem}"
        print(f"\n{name}, {asked.scale:g} times the batch\n\n{HEAD}", flush=True)
        found[name] = measured(data, recipe, asked.out / name, asked)
        write_whole(asked.out / "large_batches.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
