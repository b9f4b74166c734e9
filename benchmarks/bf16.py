"""What bf16 costs in accuracy on this machine: the same training in float32 and in bf16, seed by seed.

    python benchmarks/bf16.py [--rows 100000] [--models fnn,ipnn,pin] [--seeds 3] [--lr 2e-3] [--kind criteo] [--tables]

With --tables it is sharded tables that are kept in bfloat16 (`train.weights_precision`), by one worker; otherwise
matrices are multiplied in it (`train.precision`).

Rows come from a simulated log, which has as many validation and test rows again. Prints, for test rows, the
float32 mean, the mean of bf16 - float32 and the standard deviation of these differences, beside that of the seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.config.settings import Config, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.world import World, write_log
from fieldwise.train import distributed
from fieldwise.train.loop import train

SHAPE = ("model.dim=10", "model.hidden=[200, 200, 200]")
METRICS = ("auc", "log_loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--models", default="fnn,ipnn,pin")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--kind", default="criteo")
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    print("| model | AUC | bf16 - float32 | sd | sd of seeds | log loss | bf16 - float32 | sd | sd of seeds |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        world, sources = World(asked.kind, 0), {}
        for number, part in enumerate(("train", "valid", "test")):
            write_log(world, asked.rows, work / f"{part}.parquet", number)
            sources[part] = partial(formats.read, [work / f"{part}.parquet"])
        prepare(sources, work / "data", "click")
        for model in asked.models.split(","):
            shape = SHAPE if model != "fm" else SHAPE[:1]
            settings = [f"model.name={model}", *shape, f"train.lr={asked.lr}"]
            settings += ["train.tables=sharded"] if asked.tables else []
            varied = "train.weights_precision" if asked.tables else "train.precision"
            found = {kind: trained(work, f"{varied}={kind}", settings, asked.seeds) for kind in ("float32", "bf16")}
            print(f"| {model} | {' | '.join(compared(*found.values()))} |", flush=True)


def trained(work: Path, kind: str, settings: list[str], seeds: int) -> np.ndarray:
    """AUC and log loss of test rows, (seeds, 2)."""
    rows = []
    for seed in range(seeds):
        config = load_config(overrides=[*settings, kind, f"seed={seed}"])
        out = work / f"{config.model}-{kind}-{seed}"
        if config.train.tables == "sharded":
            test = distributed.launch(by_a_worker, (config, work / "data", out), 1, restarts=0)["test"]
        else:
            test = train(config, work / "data", out)["test"]
        rows.append([test[metric] for metric in METRICS])
        print(f"<!-- {config.model} {kind} seed {seed}: {rows[-1]} -->", flush=True)
    return np.array(rows)


def by_a_worker(config: Config, data: Path, out: Path) -> dict[str, Any]:
    with distributed.joined():
        return train(config, data, out)


def compared(plain: np.ndarray, half: np.ndarray) -> list[str]:
    cells = []
    for metric in range(len(METRICS)):
        ours, difference = plain[:, metric], half[:, metric] - plain[:, metric]
        cells += [f"{ours.mean():.5f}", f"{difference.mean():+.5f}", f"{difference.std(ddof=1):.5f}"]
        cells.append(f"{ours.std(ddof=1):.5f}")
    return cells


if __name__ == "__main__":
    main()
