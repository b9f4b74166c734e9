"""What `prepare --engine ray` costs beside `prepare` on one machine: rows a second of a worker, and where they go.

    python benchmarks/cluster.py [--rows 2000000] [--history] [--unit FILE] [--folder DIR] [--workers 1,2]

Generated raw Criteo rows, 39 fields. Each way is a process of its own. Processor seconds are those of the driver and of
all tasks, without the seconds in which Ray and its workers start, which no number of rows changes; they stand beside
those of as many threads of one process, before and after. Then the same costs for more workers than this machine has:
tasks are spread over them, what the driver does stays as it is. The folders must be the same, byte for byte.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prepare import KEYS, raw_file

from fieldwise.data.encode.ray_engine import RayEngine, on_ray
from fieldwise.data.recipes.asked import Asked
from fieldwise.data.recipes.prepared import prepare_asked
from fieldwise.data.schema import history_settings

SIMULATED = (4, 16, 64, 256)


@dataclass(frozen=True)
class Timed:
    """A function with the processor seconds that it took."""

    function: Callable[[Any], Any]

    def __call__(self, item: Any) -> tuple[Any, float]:
        began = time.process_time()
        found = self.function(item)
        return found, time.process_time() - began


@dataclass
class Metered:
    """Ray's engine; `steps` has the tasks and the processor seconds of each step."""

    engine: RayEngine
    steps: dict[str, list[float]] = field(default_factory=dict)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        plain = getattr(function, "function", function)
        own = self.steps.setdefault(getattr(plain, "__name__", type(plain).__name__).strip("_"), [0, 0.0])
        for found, seconds in self.engine.map(Timed(function), items):
            own[0] += 1
            own[1] += seconds
            yield found

    def check(self, paths: Any) -> None:
        self.engine.check(paths)


def prepared(path: Path, out: Path, workers: int, ray: bool, history: str) -> None:
    """Prepares in this process, and prints what it took."""
    past = history_settings(KEYS, ["time=row"] if history == "time" else []) if history else None
    asked = Asked([path], recipe="criteo", threads=workers, history=past)
    took: dict[str, Any] = {"writing": 0.0}
    last: tuple[str, float] = "", 0.0

    def progress(step: str, rows: int) -> None:
        nonlocal last
        now = time.process_time()
        # Before the first ids are there, what is saved is as large as there are values and keys, not rows.
        took["writing"] += now - last[1] if step == last[0] == "encoding" else 0.0
        last = step, now

    @contextmanager
    def metered() -> Iterator[Metered]:
        with on_ray(workers=workers) as engine:
            meter = Metered(engine)
            list(engine.map(time.sleep, [0.5] * 2 * workers))  # Until all workers are there.
            began, driver = time.monotonic(), time.process_time()
            yield meter
            ended = time.process_time()
            took.update(seconds=time.monotonic() - began, driver=ended - driver, steps=meter.steps)

    began, driver = time.monotonic(), time.process_time()
    prepare_asked(asked, out, progress=progress, engine=metered if ray else None)
    if not ray:
        took |= {"seconds": time.monotonic() - began, "driver": time.process_time() - driver, "steps": {}}
    print(json.dumps(took))


def measured(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"tasks": sum(seconds for _, seconds in found["steps"].values())}


def same(one: Path, other: Path) -> bool:
    names = [
        sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()) for folder in (one, other)
    ]
    return names[0] == names[1] and not filecmp.cmpfiles(one, other, names[0], shallow=False)[1]


def line(name: str, rows: int, took: dict[str, Any]) -> str:
    processor = took["driver"] + took["tasks"]
    return (
        f"{name:24}{rows / took['seconds']:>10,.0f} rows/s {took['seconds']:7.1f} s  processor s: driver "
        f"{took['driver']:6.1f}, tasks {took['tasks']:7.1f}, {1e6 * processor / rows:6.2f} us a row"
    )


def simulated(rows: int, took: dict[str, Any]) -> None:
    """The rows a second of very many rows on more workers: steps come one after the other, each as long as its tasks
    on so many workers, but that of the ids no shorter than the driver takes to write and to digest them."""
    steps = {step: seconds / rows for step, (_, seconds) in took["steps"].items()}
    encoding, writing = steps.pop("Encoding"), took["writing"] / rows
    for workers in SIMULATED:
        each = sum(steps.values()) / workers + max(encoding / workers, writing)
        print(f"  simulated, {workers:4} workers: {1 / each:>12,.0f} rows/s", flush=True)
    print(
        f"  the driver: {1e6 * writing:.2f} us a row, {took['driver'] - took['writing']:.1f} s for any number of rows"
    )


def compare(folder: Path, path: Path, rows: int, workers: list[int], history: str) -> None:
    print(f"{rows:,} rows x 39 fields{f', 10 keys with a history in {history}' if history else ''}")
    ways = partial(measured, path)
    for count in workers:
        # Before and after, because other work on the machine comes and goes.
        one = [ways(folder / "one", count, 0, history)]
        took = ways(folder / f"ray{count}", count, 1, history)
        alike = same(folder / "one", folder / f"ray{count}")
        shutil.rmtree(folder / "one")
        one.append(ways(folder / "one", count, 0, history))
        shutil.rmtree(folder / "one")
        for each in one:
            print(line(f"one machine, {count} threads", rows, each))
        print(line(f"ray, {count} workers", rows, took))
        share = sum(each["driver"] for each in one) / 2 / (took["driver"] + took["tasks"])
        print(f"  rows per processor second: {share:.2f} of one machine's; the same folder: {alike}", flush=True)
    for step, (tasks, seconds) in took["steps"].items():
        print(f"  {step:12}{tasks:6.0f} tasks {seconds:8.1f} processor s {1e6 * seconds / rows:6.2f} us a row")
    simulated(rows, took)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        path, out, workers, ray, history = sys.argv[2:7]
        prepared(Path(path), Path(out), int(workers), ray == "1", history)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--history", action="store_true", help="also with ten keys' past, in folds and in time")
    parser.add_argument("--unit", type=Path, help="two million rows that `simulate --layout raw` has written")
    parser.add_argument("--folder", help="where the files go while they are needed")
    asked = parser.parse_args()
    workers = [int(count) for count in asked.workers.split(",")]
    for history in ("", *(("folds", "time") if asked.history else ())):
        with tempfile.TemporaryDirectory(dir=asked.folder) as name:
            folder = Path(name)
            compare(folder, raw_file(folder, asked.rows, given=asked.unit), asked.rows, workers, history)


if __name__ == "__main__":
    main()
