"""What a stranger gets without a setting: `prepare`, `compare`, `predict`, beside CatBoost, LightGBM and XGBoost.

    python benchmarks/defaults.py train.csv test.csv --label y --peers VENV/bin/python --out OUT [--numbers a,b]

VENV has catboost, lightgbm, xgboost, pandas (trees_peers.py). Ours: the three verbs on train.csv, with the default
split, and `compare`'s best on test.csv. Peers stop early on the same validation rows and train on all others of
train.csv, as `compare`'s best does in the end. `--numbers` are their numeric columns, all others but
`--drop` their categories. What is in OUT is kept. Prints AUC, log loss, and by how much ours is better.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.recipes.asked import SHARES
from fieldwise.evaluation import metrics

PEERS = ("catboost", "lightgbm", "xgboost")
Rows = list[list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--peers", type=Path, required=True, help="a python with catboost, lightgbm, xgboost, pandas")
    parser.add_argument("--numbers", default="", help="numeric columns, with commas")
    parser.add_argument("--drop", default="", help="columns that peers do not read, such as an identifier")
    parser.add_argument("--only", default=",".join(PEERS), help="some of the peers")
    parser.add_argument("--seeds", default="", help="of `compare`, where not its own default")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    header, train = _read(asked.train)
    held = _read(asked.test)[1]
    labels = np.array([int(row[header.index(asked.label)]) for row in held])
    found = {"fieldwise": _ours(asked)}
    folder = asked.out / "peers"
    _write_peers(folder, header, train, held, asked)
    for peer in asked.only.split(","):
        if not (folder / f"{peer}.npz").exists():
            subprocess.run([asked.peers, Path(__file__).with_name("trees_peers.py"), folder, peer], check=True)
        found[peer] = np.load(folder / f"{peer}.npz")["test"]
    ours = _losses(labels, found["fieldwise"])
    for name, probabilities in found.items():
        own = _losses(labels, probabilities)
        gain = own - ours
        error = float(gain.std() / np.sqrt(len(gain)))
        beside = f"  ours is better by {gain.mean():+.4f} +- {error:.4f}" if name != "fieldwise" else ""
        print(f"{name:10} AUC {metrics.auc(labels, probabilities):.4f}  log loss {own.mean():.4f}{beside}")


def _ours(asked: argparse.Namespace) -> NDArray[np.float64]:
    out: Path = asked.out
    verb = [sys.executable, "-m", "fieldwise"]
    data, runs, predictions = out / "data", out / "comparison", out / "predictions.csv"
    if not data.exists():
        subprocess.run([*verb, "prepare", asked.train, "--label", asked.label, "--out", data], check=True)
    seeds = ["--seeds", asked.seeds] if asked.seeds else []
    subprocess.run([*verb, "compare", data, *seeds, "--out", runs], check=True)
    subprocess.run([*verb, "predict", runs / "best", asked.test, "-o", predictions], check=True)
    return np.array([float(row[0]) for row in _read(predictions)[1]])


def _read(path: Path) -> tuple[list[str], Rows]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def _write_peers(folder: Path, header: list[str], train: Rows, held: Rows, asked: argparse.Namespace) -> None:
    """The rows as trees_peers.py reads them; the validation rows are those of `prepare`'s own split at random."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.searchsorted(np.cumsum(SHARES)[:2], np.random.default_rng(0).random(len(train)), side="right")
    valid = [row for row, part in zip(train, drawn, strict=True) if part == 1]
    rest = [row for row, part in zip(train, drawn, strict=True) if part != 1]
    for name, rows in (("train", rest), ("valid", valid), ("test", held)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    numbers = [name for name in asked.numbers.split(",") if name]
    left_out = {asked.label, *numbers, *asked.drop.split(",")}
    facts = {"label": asked.label, "numbers": numbers, "categories": [n for n in header if n not in left_out]}
    (folder / "columns.json").write_text(json.dumps(facts), encoding="utf-8")


def _losses(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return -np.where(labels > 0, np.log(p), np.log1p(-p))


if __name__ == "__main__":
    main()
