"""Latency of the engine, in this process and on one thread: encoding, one row, a ranking against whole rows.

    python benchmarks/engine.py [--model pin] [--candidates 100] [--context 30] [--rounds 200]

The model has 39 fields (the simulated Criteo log), vectors of 20 and drawn weights: what it says does not matter here.
The ways to do the same thing take turns, so that whatever else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.bundle import bundle
from fieldwise.bundle.calibration import Calibration
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from fieldwise.export.export import export
from fieldwise.serving.engine import Engine
from fieldwise.serving.row_coder import column_of


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="pin")
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--context", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine, rows = made(Path(folder), arguments.model)
        report(engine, rows, arguments)


def made(folder: Path, model: str) -> tuple[Engine, list[dict[str, Any]]]:
    """An engine of a model with drawn weights, and rows of its log."""
    table = World("criteo").log(20_000).table
    prepare({"train": lambda: iter([table])}, folder / "data", "click")
    sized = ["model.dim=20"] if model not in ("lr", "poly2", "ffm") else []
    config = load_config(overrides=[f"model.name={model}", *sized])
    network: Any = bundle.build_model(config, Dataset.open(folder / "data").layout)
    sources = {name: folder / "data" / name for name in ("schema.toml", "encoder")}
    bundle.write(folder / "bundle", config, sources, network, Calibration(), {})
    export(folder / "bundle", folder / "out")
    return Engine.load(folder / "out"), table.drop_columns(["click"]).slice(0, 1000).to_pylist()


def report(engine: Engine, rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    columns = list(engine.columns)
    context = {name: rows[0].get(name) for name in columns[: arguments.context]}
    own = columns[arguments.context :]
    candidates = [{name: row.get(name) for name in own} for row in rows[: arguments.candidates]]
    whole = [{**context, **candidate} for candidate in candidates]
    coder, scorer = engine.coders[0], engine.bundle.model
    ids, many = (coder.ids(column_of(some), len(some)) for some in (rows[:1], whole))
    ways: dict[str, Callable[[], Any]] = {
        "encode 1 row": lambda: coder.ids(column_of(rows[:1]), 1),
        "session 1 row": lambda: scorer.logits(ids),
        "predict 1 row": lambda: engine.predict(rows[:1]),
        f"session {len(whole)} whole rows": lambda: scorer.logits(many),
        f"predict {len(whole)} whole rows": lambda: engine.predict(whole),
        f"rank {len(whole)} behind {len(context)} of {len(columns)} fields": lambda: engine.rank(context, candidates),
    }
    for way in ways.values():
        for _ in range(3):
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - began)
    print(f"{engine.model['model']}, {len(columns)} fields, ms over {arguments.rounds} rounds")
    for name, found in times.items():
        low, p50, p99 = np.percentile(found, [0, 50, 99]) * 1e3
        print(f"  {name:38} least {low:8.3f}  p50 {p50:8.3f}  p99 {p99:8.3f}")
    *_, predicted, ranked = (np.array(found) for found in times.values())
    least, middle = predicted.min() / ranked.min(), np.median(predicted / ranked)
    print(f"  a ranking is {least:.2f}x as fast as whole rows (least times), {middle:.2f}x round by round (median)")
    order, found = engine.rank(context, candidates)
    print(f"  probabilities differ by at most {np.abs(engine.predict(whole)[order] - found).max():.1e}")


if __name__ == "__main__":
    main()
