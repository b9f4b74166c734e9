"""What keeping a share of the negatives costs, on a generated log with about 1 % positives.

    python benchmarks/downsampling.py [--rows 1000000] [--models lr,fm]

Validation and test rows (as many again, each) keep all of their negatives: predicted / true should stay near 1, and log
loss near that of training on all rows. `formula` has the correction p / (p + (1 - p) / r) alone; `platt`, the default,
fits slope and shift on validation rows too. `true` is the mean of the world's own probabilities, `observed` that of the
clicks drawn from them.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from pyarrow import parquet

from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.world import World, write_log
from fieldwise.train.loop import train

SHARES = (1.0, 0.5, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--models", default="lr,fm")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    titles = "predicted / true | predicted / observed | log loss | change"
    print(f"| model | calibration | negatives kept | training rows | {titles} |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        world, sources = World("ipinyou", asked.seed, 0.01), {}
        for number, part in enumerate(("train", "valid", "test")):
            write_log(world, asked.rows, work / f"{part}.parquet", asked.seed + number, truth=True)
            sources[part] = partial(formats.read, [work / f"{part}.parquet"])
        test = parquet.read_table(work / "test.parquet", columns=["click", "true_probability"])
        true = np.mean(test["true_probability"]) / np.mean(test["click"])
        rows = {}
        for share in SHARES:
            facts = prepare(sources, work / f"{share}", "click", keep_negatives=share, drop=["true_probability"])
            rows[share] = facts["rows"]["train"]
        for model in asked.models.split(","):
            for kind, shown in (("none", "formula"), ("platt", "platt")):
                whole = 0.0
                for share in SHARES:
                    chosen = [f"model.name={model}", f"train.calibration={kind}", f"seed={asked.seed}"]
                    run = work / f"{model}-{kind}-{share}"
                    found = train(load_config(overrides=chosen), work / f"{share}", run)["test"]
                    whole = whole or found["log_loss"]
                    change = f"{found['log_loss'] / whole - 1:+.2%}"
                    ratios = f"{found['calibration'] / true:.4f} | {found['calibration']:.4f}"
                    figures = f"{ratios} | {found['log_loss']:.5f} | {change}"
                    print(f"| {model} | {shown} | {share:g} | {rows[share]:,} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
