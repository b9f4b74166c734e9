"""What history fields cost in `prepare`: time and peak memory with and without ten keys, on a generated Criteo log.

    python benchmarks/history.py [--rows 2000000] [--time]

Each `prepare` is a process of its own. With --time the history runs along the order of the rows, otherwise by folds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fieldwise.data.world import World, write_log

KEYS = "C1,C2,C3,C7,C10,C1*C2,C3*C4,C5*C9,C14*C17,C20*C22"


def measured(arguments: list[str]) -> tuple[float, float]:
    """Seconds and peak memory in GB of a command."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "fieldwise", *arguments, "--json"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit("prepare failed")
    return time.monotonic() - began, usage.ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--time", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        write_log(World("criteo"), asked.rows, log)
        plain = ["prepare", str(log), "--label", "click", "--split-by", "row"]
        history = ["--history", KEYS, *(["--history-set", "time=row"] if asked.time else [])]
        one = measured([*plain, "--out", f"{folder}/plain"])
        other = measured([*plain, *history, "--out", f"{folder}/history"])
    told = "in the order of the rows" if asked.time else "in 10 folds"
    print(f"{asked.rows:,} rows x 39 fields, {KEYS.count(',') + 1} keys, {told}")
    print(f"prepare                {one[0]:7.1f} s  {one[1]:5.2f} GB")
    print(f"prepare with history   {other[0]:7.1f} s  {other[1]:5.2f} GB  ({other[0] / one[0]:.2f} times as long)")


if __name__ == "__main__":
    main()
