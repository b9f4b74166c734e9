"""How fast a world's log becomes a prepared folder (`simulate --layout ids`), by phase, and whether it is the text's.

    python benchmarks/world.py [--kinds criteo,avazu,ipinyou,appstore] [--rows 2000000] [--threads 1,16] [--check 20000]
        [--folder DIR]

The phases are the two passes over the rows, drawing (codes, truth, labels, counts) and encoding (codes again, ids,
digest, disk), and fitting between them, which does not grow with the rows once all values were seen. First of all the
folder of --check rows is held against that which `prepare` makes of the csv file of the same log, byte for byte; where
there is no DuckDB, which `prepare` needs, against the csv file's cells by the folder's own encoder, row for row.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fieldwise.data.dataset import PARTS, Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.split import Split, at_random
from fieldwise.data.world import World, write_log
from fieldwise.data.world.prepared import prepare_log


def measured(kind: str, rows: int, threads: int, folder: Path) -> dict[str, float]:
    """Seconds of each phase."""
    began = time.perf_counter()
    world = World(kind)
    world.block(world.span(1000), 0)  # compiles, where this is the first time
    made = time.perf_counter()
    first: dict[str, float] = {}
    last: dict[str, float] = {}

    def progress(step: str, done: int) -> None:
        last[step] = time.perf_counter()
        first.setdefault(step, last[step])

    shutil.rmtree(folder, ignore_errors=True)
    prepare_log(world, world.span(rows), folder, progress=progress, threads=threads)
    ended = time.perf_counter()
    drawn, fitted = last["drawing"], first["encoding"]
    shutil.rmtree(folder)
    return {"world": made - began, "drawing": drawn - made, "fitting": fitted - drawn, "encoding": ended - fitted}


def same_as_text(kind: str, rows: int, folder: Path) -> str:
    """What was compared, and that nothing differed."""
    world, file = World(kind), folder / f"{kind}.csv"
    ids, text = folder / f"{kind}-ids", folder / f"{kind}-text"
    for old in (ids, text):
        shutil.rmtree(old, ignore_errors=True)
    prepare_log(world, world.span(rows), ids)
    write_log(world, rows, file)
    if importlib.util.find_spec("duckdb") is None:
        return _same_rows(file, ids)
    command = [sys.executable, "-m", "fieldwise", "prepare", str(file), "--label", world.label, "--history", "none"]
    subprocess.run([*command, "--out", str(text)], check=True, capture_output=True)
    names = [{path.relative_to(one) for path in one.rglob("*") if path.is_file()} for one in (ids, text)]
    assert names[0] == names[1], names[0] ^ names[1]
    for name in names[0]:
        assert (ids / name).read_bytes() == (text / name).read_bytes(), f"{kind}: {name} differs"
    return f"{len(names[0])} files are those of prepare, byte for byte"


def _same_rows(file: Path, folder: Path) -> str:
    dataset = Dataset.open(folder)
    names = file.open(encoding="utf-8").readline().strip().split(",")
    table = csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())))
    parts = at_random(Split())(table["click"].cast(pa.uint8()).to_numpy())
    for name, part in dataset.parts.items():
        own = table.filter(pa.array(parts == PARTS.index(name)))
        found = Encoder.load(folder / "encoder", dataset.schema).transform(own)
        assert np.array_equal(found, part.ids), f"ids of {name} differ ({file})"
        assert np.array_equal(own["click"].cast(pa.int8()).to_numpy(), part.labels), f"labels of {name} differ ({file})"
    return f"ids and labels of {len(table):,} rows are those of the csv file's cells"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="criteo,avazu,ipinyou,appstore")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--check", type=int, default=20_000, help="0: no check")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as made:
        folder = Path(made)
        for kind in asked.kinds.split(","):
            if asked.check:
                print(f"{kind}: {same_as_text(kind, asked.check, folder)}", flush=True)
            for threads in map(int, asked.threads.split(",")):
                seconds = measured(kind, asked.rows, threads, folder / "data")
                whole = sum(seconds.values()) - seconds["world"]
                found = {f"{phase}_s": round(value, 2) for phase, value in seconds.items()}
                found |= {
                    f"{phase}_rows_per_s": round(asked.rows / seconds[phase]) for phase in ("drawing", "encoding")
                }
                found |= {"rows_per_s": round(asked.rows / whole)}
                print(json.dumps({"kind": kind, "rows": asked.rows, "threads": threads, **found}), flush=True)


if __name__ == "__main__":
    main()
