"""What `predict` takes beside parsing the same file, in wall and processor time: the simulated Criteo log, 39 columns.

    python benchmarks/predict.py [--rows 400000] [--models lr,fm] [--rounds 5]

A model of each name is trained for one epoch on 100,000 rows. `parse` reads all columns of the csv by `predict`'s own
reader and drops them; `predict` writes a csv of probabilities, as the verb does. They take turns in one process, on as
many threads as the machine has cores, and the fastest round of each counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.read.parallel import cores, using
from fieldwise.data.recipes.raw_columns import rows_of
from fieldwise.data.world import World, write_log
from fieldwise.train.loop import train


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--models", default="lr,fm")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, rows, seed in (("train", 100_000, 0), ("new", asked.rows, 1)):
            write_log(World("criteo", 0), rows, work / f"{name}.csv", seed)
        prepare({"train": partial(formats.read, [work / "train.csv"])}, work / "data", "click")
        for model in asked.models.split(","):
            sized = [] if model == "lr" else ["model.dim=20"]
            chosen = [f"model.name={model}", "train.epochs=1", *sized]
            train(load_config(overrides=chosen), work / "data", work / model)
            report(model, Predictor.load(work / model), work, asked.rounds)


def report(model: str, predictor: Predictor, work: Path, rounds: int) -> None:
    def rows() -> Any:
        return rows_of(predictor.schema, work / "new.csv", predictor.schema.columns)

    def parse() -> None:
        for _ in rows():
            pass

    def predict() -> None:
        formats.write(work / "out.csv", predictor.predict_file(work / "new.csv"), lambda *_: None)

    ways: dict[str, Callable[[], None]] = {"parse": parse, "predict": predict}
    times = np.array([[timed(way) for way in ways.values()] for _ in range(rounds + 1)])[1:]
    least = times.min(axis=0)
    for name, (wall, processor) in zip(ways, least, strict=True):
        print(f"{model:4} {name:8} wall {wall:.3f} s, processor {processor:.3f} s")
    print(
        f"{model:4} predict over parse: wall {least[1, 0] / least[0, 0]:.2f}, processor {least[1, 1] / least[0, 1]:.2f}"
    )


def timed(way: Callable[[], None]) -> tuple[float, float]:
    with using(cores()):
        wall, processor = time.perf_counter(), time.process_time()
        way()
        return time.perf_counter() - wall, time.process_time() - processor


if __name__ == "__main__":
    main()
