"""What keeping a share of the negatives costs, on a generated log with about 1 % positives.

    python benchmarks/downsampling.py [--rows 500000] [--models lr,fm]

For each share: test rows are all rows of the test part; predicted / observed should stay near 1, and log loss near that
of training on all rows. `formula` has the correction p / (p + (1 - p) / r) alone, `platt` fits on validation rows too.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from fieldwise.config import load_config
from fieldwise.data import formats
from fieldwise.data.prepare import prepare
from fieldwise.data.world import World, write_log
from fieldwise.train import train

SHARES = (1.0, 0.5, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--models", default="lr,fm")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("| model | calibration | negatives kept | training rows | predicted / observed | log loss | change |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        log = work / "log.parquet"
        write_log(World("ipinyou", asked.seed, 0.01), asked.rows, log, asked.seed)
        rows = {}
        for share in SHARES:
            source = {"train": partial(formats.read, [log])}
            rows[share] = prepare(source, work / f"data{share}", "click", keep_negatives=share)["rows"]["train"]
        for model in asked.models.split(","):
            for kind, shown in (("none", "formula"), ("platt", "platt")):
                whole = 0.0
                for share in SHARES:
                    chosen = [f"model.name={model}", f"train.calibration={kind}", f"seed={asked.seed}"]
                    run = work / f"{model}-{kind}-{share}"
                    found = train(load_config(overrides=chosen), work / f"data{share}", run)["test"]
                    whole = whole or found["log_loss"]
                    change = f"{found['log_loss'] / whole - 1:+.2%}"
                    figures = f"{found['calibration']:.4f} | {found['log_loss']:.5f} | {change}"
                    print(f"| {model} | {shown} | {share:g} | {rows[share]:,} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
