"""Our models against CatBoost, LightGBM and XGBoost on the same rows: five splits, compared in pairs.

    python benchmarks/trees.py criteo criteo80k.tsv --peers VENV/bin/python --out OUT [--models gbdt,lr]

Sets: criteo (rows in time order, no header), avazu (by hour), amazon (five folds). The files are not in this
repository. In time, train is all that came before a split's validation block, and its test block comes after; no
validation block is a test block of another split, so that settings can be chosen on validation blocks without a look
at any test row. Of five folds, the validation rows are a tenth of all rows, drawn from the training side.

VENV has catboost, lightgbm, xgboost, pandas (trees_peers.py). Ours go through `fieldwise prepare`, `train` and `blend`
with the set's folder of recipes/: schema.toml, a MODEL.toml for each model; the blend is of all of `--models`. One
thread each. What is there is kept, so that a killed call goes on. Leaves OUT/results.json and OUT/table.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle.calibration import fit
from fieldwise.bundle.predictions import Predictions
from fieldwise.evaluation import metrics
from fieldwise.evaluation.significance import signed_rank

HERE = Path(__file__).resolve().parent
PEERS = ("catboost", "lightgbm", "xgboost")
PARTS = ("train", "valid", "test")
SPLITS = 5
BLOCKS = 10  # of a split's test rows, for the signed-rank test
NUMBERS, CATEGORIES = tuple(f"I{n}" for n in range(1, 14)), tuple(f"C{n}" for n in range(1, 27))


@dataclass(frozen=True)
class Set:
    """A data set: its label, our recipes and models for it, the order of its rows, and where splits are cut, in shares.

    `order`: a column whose equal values stay together, `row`, or nothing for folds at random. `cuts`: where validation
    and test blocks begin, in turns, and the end. `columns`: the names where the file has none.
    """

    label: str
    recipes: str
    models: str
    order: str = ""
    cuts: tuple[float, ...] = ()
    drop: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


# The last split is the one of docs/results.md: 80/10/10 and 70/15/15.
SETS = {
    "criteo": Set(
        "label",
        "criteo80k",
        "gbdt,lr",
        "row",
        (0.3, 0.35, 0.425, 0.475, 0.55, 0.6, 0.675, 0.725, 0.8, 0.9, 1.0),
        numbers=NUMBERS,
        columns=("label", *NUMBERS, *CATEGORIES),
    ),
    "avazu": Set(
        "click",
        "avazu20k",
        "gbdt,lr,fm",
        "hour",
        (0.3, 0.34, 0.4, 0.44, 0.5, 0.54, 0.6, 0.64, 0.7, 0.85, 1.0),
        drop=("id", "hour"),
    ),
    "amazon": Set("ACTION", "amazon-triples", "gbdt"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="a python with catboost, lightgbm, xgboost, pandas")
    parser.add_argument("--models", default="", help="those of the set without")
    parser.add_argument("--only-peers", action="store_true", help="train no model of ours yet")
    parser.add_argument("--recipes", type=Path, default=HERE.parent / "recipes")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    chosen = SETS[asked.set]
    models = (asked.models or chosen.models).split(",")
    header, rows = _read(asked.file, chosen)
    found: list[dict[str, Any]] = []
    for number, places in enumerate(_splits(header, rows, chosen)):
        folder = asked.out / str(number)
        _write(folder, header, rows, places, chosen)
        sizes = ", ".join(f"{len(own):,} {part}" for part, own in places.items())
        print(f"split {number + 1}: {sizes}", flush=True)
        for peer in PEERS:
            _peer(asked.peers, folder, peer)
        if asked.only_peers:
            continue
        _ours(folder, asked.recipes / chosen.recipes, models)
        found.append(_measured(folder, models, chosen.label))
        for name, own in found[-1].items():
            print(f"  {name:20} {own['auc']:.4f} / {own['log_loss']:.4f}  {own['seconds']:.0f} s", flush=True)
    if asked.only_peers:
        return
    result = {"set": asked.set, "splits": [_facts(split) for split in found], "pairs": _pairs(found, models)}
    (asked.out / "results.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    (asked.out / "table.md").write_text(_table(found, result["pairs"]), encoding="utf-8")
    print((asked.out / "table.md").read_text(encoding="utf-8"))


def _read(path: Path, chosen: Set) -> tuple[list[str], list[list[str]]]:
    """The file's columns and its rows as text."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        rows = list(lines)
    header = list(chosen.columns) if chosen.columns and rows[0] != list(chosen.columns) else rows.pop(0)
    return header, rows


def _splits(header: list[str], rows: list[list[str]], chosen: Set) -> Iterator[dict[str, NDArray[np.int64]]]:
    """The rows of train, valid and test in each split, in their order."""
    count = len(rows)
    if not chosen.order:
        fold = np.random.default_rng(0).permutation(count) * SPLITS // count
        for number in range(SPLITS):
            rest = np.flatnonzero(fold != number)
            valid = np.sort(np.random.default_rng(number + 1).permutation(rest)[: count // 10])
            yield {"train": np.setdiff1d(rest, valid), "valid": valid, "test": np.flatnonzero(fold == number)}
        return
    places = [round(share * count) for share in chosen.cuts]
    if chosen.order != "row":
        values = [row[header.index(chosen.order)] for row in rows]
        if values != sorted(values):
            sys.exit(f"the rows must be in the order of {chosen.order}")
        places = [place if place == count else values.index(values[place]) for place in places]
    for number in range(SPLITS):
        first, second, end = places[2 * number : 2 * number + 3]
        yield {"train": np.arange(first), "valid": np.arange(first, second), "test": np.arange(second, end)}


def _write(
    folder: Path, header: list[str], rows: list[list[str]], places: dict[str, NDArray[np.int64]], chosen: Set
) -> None:
    if (folder / "columns.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for part, own in places.items():
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows[place] for place in own)
    categories = [name for name in header if name not in (chosen.label, *chosen.drop, *chosen.numbers)]
    facts = {"label": chosen.label, "numbers": chosen.numbers, "categories": categories}
    (folder / "columns.json").write_text(json.dumps(facts), encoding="utf-8")


def _peer(python: Path, folder: Path, peer: str) -> None:
    if not (folder / f"{peer}.npz").exists():
        command = [str(python.absolute()), str(HERE / "trees_peers.py"), str(folder), peer]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""})


def _ours(folder: Path, recipes: Path, models: list[str]) -> None:
    """Prepares the split, trains each model, and blends them."""
    data, runs = folder / "data", folder / "runs"
    if not (data / "data.json").exists():
        files = [str(folder / "train.csv"), "--valid", str(folder / "valid.csv"), "--test", str(folder / "test.csv")]
        _fieldwise("prepare", *files, "--schema", str(recipes / "schema.toml"), "--out", str(data))
    for model in models:
        if not (runs / model / "DONE").exists():
            recipe = ["--config", str(recipes / f"{model}.toml"), "--seed", "0", "--device", "cpu", "--resume"]
            threads = ["--set", "model.threads=1"] if model == "gbdt" else []
            _fieldwise("train", str(data), *recipe, *threads, "--out", str(runs / model))
    name = "-".join(["blend", *models])
    if len(models) > 1 and not (runs / name / "DONE").exists():
        _fieldwise("blend", *(str(runs / model) for model in models), "--out", str(runs / name), "--force")


def _fieldwise(*arguments: str) -> None:
    command = [sys.executable, "-m", "fieldwise", *arguments, "--json"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr}")


def _measured(folder: Path, models: list[str], label: str) -> dict[str, dict[str, Any]]:
    """Every entrant's test figures and its probabilities; peers also with the calibration that ours have."""
    entrants: dict[str, tuple[Any, float]] = {}
    labels = {part: _labels(folder / f"{part}.csv", label) for part in ("valid", "test")}
    for peer in PEERS:
        with np.load(folder / f"{peer}.npz") as kept:
            entrants[peer] = (kept["test"], float(kept["seconds"]))
            logits = {part: _logits(kept[part]) for part in ("valid", "test")}
        fitted = fit("platt", labels["valid"], logits["valid"], None, 0.0)
        entrants[f"{peer}, calibrated"] = (fitted.probabilities(logits["test"]), entrants[peer][1])
    for model in [*models, *(["-".join(["blend", *models])] if len(models) > 1 else [])]:
        run = folder / "runs" / model
        kept_run = Predictions.load(run)
        if not np.array_equal(kept_run.labels, labels["test"]):
            sys.exit(f"{run} has other test rows than {folder}")
        seconds = json.loads((run / "report.json").read_text(encoding="utf-8"))["seconds"]
        entrants[_shown(model)] = (kept_run.probabilities, seconds)
    return {
        name: {
            "auc": metrics.auc(labels["test"], own),
            "log_loss": metrics.log_loss(labels["test"], own),
            "seconds": seconds,
            "rows": len(own),
            "losses": metrics.losses(labels["test"], own),
        }
        for name, (own, seconds) in entrants.items()
    }


def _logits(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    p = np.clip(probabilities.astype(np.float64), metrics.CLIP, 1 - metrics.CLIP)
    return np.asarray(np.log(p) - np.log1p(-p))


def _shown(model: str) -> str:
    return "blend" if model.startswith("blend-") else model


def _labels(path: Path, label: str) -> NDArray[np.uint8]:
    with path.open(encoding="utf-8", newline="") as file:
        return np.array([int(row[label]) for row in csv.DictReader(file)], dtype=np.uint8)


def _facts(split: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: {key: value for key, value in own.items() if key != "losses"} for name, own in split.items()}


def _pairs(found: list[dict[str, dict[str, Any]]], models: list[str]) -> list[dict[str, Any]]:
    """Each of ours against each peer: gains over the splits, over all test rows, and over blocks of rows."""
    ours = [*models, *(["blend"] if len(models) > 1 else [])]
    return [_pair(found, name, peer) for name in ours for peer in found[0] if peer.startswith(PEERS)]


def _pair(found: list[dict[str, dict[str, Any]]], name: str, peer: str) -> dict[str, Any]:
    gains = {
        "auc": np.array([split[name]["auc"] - split[peer]["auc"] for split in found]),
        "log_loss": np.array([split[peer]["log_loss"] - split[name]["log_loss"] for split in found]),
    }
    by_row = [split[peer]["losses"] - split[name]["losses"] for split in found]
    rows = np.concatenate(by_row)
    blocks = np.array([block.mean() for own in by_row for block in np.array_split(own, BLOCKS)])
    tested = signed_rank(blocks)
    return {
        "ours": name,
        "peer": peer,
        **{f"{key}_gain": float(own.mean()) for key, own in gains.items()},
        **{f"{key}_se": float(own.std(ddof=1) / len(own) ** 0.5) for key, own in gains.items()},
        **{f"{key}_wins": int((own > 0).sum()) for key, own in gains.items()},
        "row_gain": float(rows.mean()),
        "row_se": float(rows.std(ddof=1) / len(rows) ** 0.5),
        "blocks": tested["blocks"],
        "blocks_better": tested["better"],
        "p": tested["p"],
        "verdict": tested["verdict"],
    }


def _table(found: list[dict[str, dict[str, Any]]], pairs: list[dict[str, Any]]) -> str:
    names = list(found[0])
    lines = [
        "| | " + " | ".join(f"split {n + 1}" for n in range(len(found))) + " | mean |",
        "|---" * (len(found) + 2) + "|",
    ]
    mean = {name: [np.mean([split[name][key] for split in found]) for key in ("auc", "log_loss")] for name in names}
    for name in sorted(names, key=lambda one: mean[one][1]):
        cells = [f"{split[name]['auc']:.4f} / {split[name]['log_loss']:.4f}" for split in found]
        lines.append(f"| {name} | {' | '.join(cells)} | {mean[name][0]:.4f} / {mean[name][1]:.4f} |")
    lines += [
        "",
        "| | against | AUC gain | wins | log loss gain | wins | by row | blocks | p |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for pair in pairs:
        auc = f"{pair['auc_gain']:+.4f} ± {pair['auc_se']:.4f} | {pair['auc_wins']} of {len(found)}"
        loss = f"{pair['log_loss_gain']:+.4f} ± {pair['log_loss_se']:.4f} | {pair['log_loss_wins']} of {len(found)}"
        rows = f"{pair['row_gain']:+.4f} ± {pair['row_se']:.4f} | {pair['blocks_better']} of {pair['blocks']}"
        lines.append(f"| {pair['ours']} | {pair['peer']} | {auc} | {loss} | {rows} | {pair['p']:.2g} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
