"""How fast `prepare --recipe criteo` is beside the bare DuckDB query that does the same, on generated raw Criteo rows.

    python benchmarks/prepare.py [--rows 2000000,8000000] [--history] [--sequence] [--folder DIR] [--unit FILE]
    python benchmarks/prepare.py --columns 500,1000,5000 [--rows 60] [--folder DIR]

Each command is a process of its own; rows/s, peak memory and processor seconds are those of the whole process. The bare
query reads the file, gives each text with 20 or more occurrences an id by its frequency, maps all rows to ids in their
order and writes parquet, with two threads. `prepare` also fits buckets, splits, and looks for leaks. Rows beyond two
million repeat the first two. With --history ten keys' past is added, in folds and in time; with --sequence what the
last 50 rows of a key had. With --columns
`prepare` takes files of few rows and so many columns, numbers, categories, whole numbers and sets in turn, without and
with rows that it keeps; then all folders are made of these. Each number of columns stands beside the first: what grows
in line with the columns has the same seconds for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fieldwise.data.world.layouts import Simulation, write_raw

UNIT = 2_000_000
MAKE = """
import sys
from pathlib import Path
from fieldwise.data.encode.on_demand import made
for name in ("rates", "order", "refit", "refit/rates", "refit/order"):
    made(Path(sys.argv[1]) / name)
"""
SEQUENCE = "C3 by C10 last 50 time row"
KEYS = "C1,C2,C3,C7,C10,C1*C2,C3*C4,C5*C9,C14*C17,C20*C22"
BARE = r"""
import sys, duckdb
path, out = sys.argv[1:]
settings = {"threads": 2, "memory_limit": "1GB", "temp_directory": out + ".spill"}
base = duckdb.connect(out + ".duckdb", config=settings)
numbers, words = [f"c{n}" for n in range(1, 14)], [f"c{n}" for n in range(14, 40)]
kinds = ", ".join(f"{name}: '{'VARCHAR' if name in words else 'INTEGER'}'" for name in ["c0", *numbers, *words])
base.execute(f"CREATE TABLE raw AS FROM read_csv('{path}', delim='\t', header=false, quote='', columns={{{kinds}}})")
for name in words:
    number = f"(1 + row_number() OVER (ORDER BY count(*) DESC, {name}))::INTEGER"
    kept = f"FROM raw WHERE {name} IS NOT NULL GROUP BY {name} HAVING count(*) >= 20"
    base.execute(f"CREATE TABLE of_{name} AS SELECT {name} AS v, {number} AS id {kept}")
bucket = "CASE WHEN {n} IS NULL THEN 0 WHEN {n} > 2 THEN 4 + floor(ln({n}) ** 2)::INTEGER ELSE 3 END AS {n}"
cells = [bucket.format(n=name) for name in numbers]
cells += [f"CASE WHEN raw.{n} IS NULL THEN 0 ELSE coalesce(of_{n}.id, 1) END AS {n}" for n in words]
joins = " ".join(f"LEFT JOIN of_{n} ON raw.{n} = of_{n}.v" for n in words)
base.execute(f"COPY (SELECT c0, {', '.join(cells)} FROM raw {joins} ORDER BY raw.rowid) TO '{out}'")
"""


@dataclass(frozen=True)
class Cost:
    """What a process took."""

    seconds: float
    processor: float
    memory: float

    def line(self, name: str, rows: int, than: Cost | None = None) -> str:
        ratio = f"  {than.seconds / self.seconds:5.2f} of the bare query's rows/s" if than else ""
        return (
            f"{name:34}{rows / self.seconds:>10,.0f} rows/s {self.seconds:7.1f} s {self.processor:7.1f} processor s"
            f" {self.memory:6.2f} GB{ratio}"
        )


def measured(*command: str) -> Cost:
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)[:200]}")
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6)


def raw_file(folder: Path, rows: int, unit: int = UNIT, given: Path | None = None) -> Path:
    """A headerless file of so many rows; the generated ones, if they are not given, are kept for the next size."""
    few = min(rows, unit)
    once = given if given and few == unit else folder / f"unit{few}.txt"
    if not once.exists():
        write_raw("criteo", Simulation(few), once)
    path = folder / f"raw{rows}.txt"
    with path.open("wb") as file:
        for _ in range(rows // few):
            with once.open("rb") as part:
                shutil.copyfileobj(part, file, 1 << 24)
    return path


def digest(folder: Path) -> str:
    return str(json.loads((folder / "data.json").read_text(encoding="utf-8"))["digest"])


def compare(folder: Path, rows: int, history: bool, given: Path | None, sequence: bool = False) -> None:
    path = raw_file(folder, rows, given=given)
    prepare = ["-m", "fieldwise", "prepare", str(path), "--recipe", "criteo", "--json", "--force"]
    bare = measured("-c", BARE, str(path), str(folder / "bare.parquet"))
    two = measured(*prepare, "--threads", "2", "--out", str(folder / "two"))
    one = measured(*prepare, "--threads", "1", "--out", str(folder / "one"))
    print(f"{rows // min(rows, UNIT) * min(rows, UNIT):,} rows x 39 fields")
    print(bare.line("bare DuckDB query, 2 threads", rows))
    print(two.line("prepare --threads 2", rows, bare))
    print(one.line("prepare --threads 1", rows, bare))
    print(f"same rows from 1 and 2 threads: {digest(folder / 'one') == digest(folder / 'two')}", flush=True)
    if sequence:
        cost = measured(*prepare, "--sequence", SEQUENCE, "--threads", "2", "--out", str(folder / "sequence"))
        print(cost.line("with the last 50 of a key", rows), flush=True)
        shutil.rmtree(folder / "sequence")
    for name, more in (("in 10 folds", []), ("in time", ["--history-set", "time=row"])) if history else ():
        cost = measured(*prepare, "--history", KEYS, *more, "--threads", "2", "--out", str(folder / "past"))
        print(
            cost.line(f"with 10 keys' history {name}", rows),
            f" {cost.seconds / two.seconds:.2f} times as long as without",
        )
    for left in folder.glob("bare.parquet*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    path.unlink()


def wide_file(path: Path, rows: int, columns: int) -> None:
    """A csv file of a label and columns of four kinds in turn."""
    random = np.random.default_rng(0)
    table: dict[str, object] = {"click": np.arange(rows) % 2}
    for number in range(columns):
        whole = random.integers(0, 10, (rows, 3))
        kinds = (
            random.normal(size=rows).round(4),
            [f"v{value}" for value in whole[:, 0]],
            random.integers(0, 1000, rows),
            ["|".join(f"m{value}" for value in row) for row in whole // 2],
        )
        table[f"x{number}"] = kinds[number % len(kinds)]
    csv.write_csv(pa.table(table), path, csv.WriteOptions(quoting_style="none"))


def compare_widths(folder: Path, rows: int, widths: list[int]) -> None:
    """Files of as many rows and more and more columns, without and with kept rows, and what is made of these."""
    # What is compiled once, and read from disk, is paid before.
    wide_file(folder / "warm.csv", rows, 10)
    prepare = ["-m", "fieldwise", "prepare", "--label", "click", "--json", "--force", "--out"]
    ways = {"prepare --history none": ["--history", "none"], "prepare": []}
    for name, more in (*ways.items(), ("the folders made of rows", None)):
        first = 0.0
        for columns in widths:
            path = folder / f"wide{columns}.csv"
            wide_file(path, rows, columns)
            costs = []
            for source in (folder / "warm.csv", path):
                out = str(source.with_suffix(""))
                plain = measured(*prepare, out, str(source), *(more or []))
                costs.append(plain if more is not None else measured("-c", MAKE, out))
            start, cost = costs
            each = (cost.processor - start.processor) / columns
            first = first or each
            print(
                f"{name:24}{rows:>6,} rows x {columns:>6,} columns {cost.seconds:7.1f} s {cost.processor:7.1f} "
                f"processor s {cost.memory:6.2f} GB {1000 * each:7.2f} ms a column, {each / first:.2f} of the first",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="2000000,8000000, or with --columns 60")
    parser.add_argument("--columns", help="such as 500,1000,5000")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--sequence", action="store_true")
    parser.add_argument("--folder", help="where the files go while they are needed")
    parser.add_argument("--unit", type=Path, help="two million rows that `simulate --layout raw` has written")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        if asked.columns:
            compare_widths(Path(folder), int(asked.rows or 60), [int(width) for width in asked.columns.split(",")])
            return
        for rows in (asked.rows or "2000000,8000000").split(","):
            compare(Path(folder), int(rows), asked.history, asked.unit, asked.sequence)


if __name__ == "__main__":
    main()
