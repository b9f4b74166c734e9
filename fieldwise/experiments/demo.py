"""The demo: a simulated log, four models, and their distance to the truth."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import FieldwiseError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.world import World, write_log
from fieldwise.evaluation import metrics
from fieldwise.reporting.console import TrainingBar, counting, err, out
from fieldwise.reporting.report import print_table, table_rows, write_report
from fieldwise.train.loop import train

MODELS = ("lr", "fm", "fnn", "pin")
TRUTH = "true_probability"


def run_demo(folder: Path, rows: int = 200_000, seed: int = 0, quiet: bool = False) -> dict[str, Any]:
    """Simulates, prepares, trains and compares; returns the rows of the table and the metrics of the truth."""
    _clear(folder)
    world = World("demo", seed)
    log, data = folder / "log.csv", folder / "data"
    with counting("simulating a click log", quiet):
        write_log(world, rows, log, seed, truth=True)
    parts = _split(log, folder)
    sources = {part: partial(formats.read, [path]) for part, path in parts.items()}
    with counting("preparing", quiet) as progress:
        prepare(sources, data, world.label, progress=progress, force=True)
    runs = []
    for model in MODELS:
        with TrainingBar(f"{model:4}", quiet) as bar:
            train(load_config(base={"model.name": model, "seed": seed}), data, folder / model, progress=bar)
        runs.append(folder / model)
    oracle = _oracle(folder / "truth.npz")
    table = table_rows(runs)
    page = write_report(runs, folder / "report.html", oracle)
    if not quiet:
        print_table(table, oracle, out)
        _say_next(folder, page)
    return {"runs": table, "oracle": oracle, "report": str(page), "bundle": str(folder / "pin" / "bundle")}


def _clear(folder: Path) -> None:
    """Removes an earlier demo; refuses a folder with anything else in it."""
    marker = folder / "demo.json"
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise FieldwiseError(f"{folder} is there and holds no demo; choose another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps({"made_by": "fieldwise demo"}), encoding="utf-8")


def _split(log: Path, folder: Path) -> dict[str, Path]:
    """Splits the log at random into three files, 8:1:1, without the truth; truth.npz gets that of the test rows."""
    table = pa.concat_tables(formats.read([log]))
    draws = np.random.default_rng(1).random(len(table))
    paths = {}
    for part, low, high in (("train", 0.0, 0.8), ("valid", 0.8, 0.9), ("test", 0.9, 1.0)):
        rows = table.filter(pa.array((draws >= low) & (draws < high)))
        paths[part] = folder / f"{part}.csv"
        formats.write(paths[part], iter([rows.drop_columns([TRUTH])]), lambda step, count: None)
        if part == "test":
            labels = rows["click"].to_numpy(zero_copy_only=False).astype(np.float64)
            truth = rows[TRUTH].to_numpy(zero_copy_only=False).astype(np.float64)
            np.savez(folder / "truth.npz", labels=labels, truth=truth)
    return paths


def _oracle(path: Path) -> dict[str, Any]:
    with np.load(path) as held:
        found = metrics.evaluate(held["labels"], held["truth"])
    found.pop("reliability")
    return found


def _say_next(folder: Path, page: Path) -> None:
    err.print(
        f"""
The oracle knows the true probability of every row; no model can do better on average.
Open {page} for curves, reliability and the field pairs that matter. What to try next:
  fieldwise predict {folder / "pin"} {folder / "test.csv"} -o {folder / "predictions.csv"}
  fieldwise evaluate {folder / "pin"} {folder / "test.csv"}
  fieldwise prepare YOUR_LOG.csv --label YOUR_COLUMN --out data && fieldwise train data --model pin --out runs/pin""",
        highlight=False,
        soft_wrap=True,
    )
