"""Workers of torchrun killed at random moments: does the run end with the bits of a run that lost nobody?

    python benchmarks/worker_kills.py [--kills 10] [--workers 2] [--seed 0] [--tables replicated]

A worker drawn at random is killed (SIGKILL) while it trains, and torchrun starts all of them again. Exits with 1 if a
weight or a line of the log differs. Ten seconds for each kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World

SETTINGS = ["model.name=pin", "model.dim=4", "model.subnet=4,2", "model.hidden=[8]", "model.dropout=0.2"]
TRAINING = ["train.epochs=30", "train.patience=1000", "train.batch_size=64", "train.checkpoint_minutes=0.001"]


def start(data: Path, out: Path, workers: int, restarts: int, tables: str) -> subprocess.Popen[bytes]:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", f"--max-restarts={restarts}"]
    chosen = [f"--set={setting}" for setting in [*SETTINGS, *TRAINING, f"train.tables={tables}"]]
    command = [sys.executable, "-m", *launcher, "-m", "fieldwise", "train", str(data), *chosen, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # torchrun tells of every lost worker, at length.
    hidden: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--json"], env=environment, **hidden)


def newest(out: Path) -> int:
    """The step of the newest checkpoint, -1 without one."""
    names = os.listdir(out / "checkpoint") if (out / "checkpoint").is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def workers_of(launcher: int) -> list[int]:
    found = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="utf-8").split()
    return [pid for pid in map(int, found) if b"fieldwise" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def kill_often(launcher: subprocess.Popen[bytes], out: Path, targets: list[int], draw: random.Random) -> list[int]:
    """Kills a worker when each of these steps is reached; the steps of the last checkpoints at which it was done."""
    done = []
    for target in targets:
        while launcher.poll() is None and newest(out) < target:
            time.sleep(0.003)
        time.sleep(draw.uniform(0, 0.1))
        pids = workers_of(launcher.pid) if launcher.poll() is None else []
        if pids:
            done.append(newest(out))
            os.kill(draw.choice(pids), signal.SIGKILL)
            time.sleep(1)  # the others' end
    return done


def outcome(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The final weights, and the log but for its clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{key: value for key, value in line.items() if key != "rows_per_s"} for line in lines]
    return load_file(out / "bundle" / "weights.safetensors"), kept


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills workers of a run and compares what it ends with.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", choices=["replicated", "sharded"], default="replicated")
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as name:
        data, whole, killed = (Path(name) / part for part in ("data", "whole", "killed"))
        log = World("demo").log(1500).table
        prepare({"train": lambda: iter([log])}, data, "click")
        if start(data, whole, chosen.workers, 0, chosen.tables).wait():
            sys.exit("the run that nobody kills failed")
        last = max(line["step"] for line in outcome(whole)[1])
        targets = sorted(draw.sample(range(1, last - 20), chosen.kills))
        launcher = start(data, killed, chosen.workers, chosen.kills, chosen.tables)
        done = kill_often(launcher, killed, targets, draw)
        if launcher.wait():
            sys.exit(f"the run does not go on after kills at {done}")
        (weights, lines), (others, other_lines) = outcome(whole), outcome(killed)
    equal = all(weights[name].equal(others[name]) for name in weights) and lines == other_lines
    print(f"{len(done)} kills of {chosen.workers} workers after steps {done} of {last}: ", end="")
    print("identical weights and log" if equal else "DIFFERENT")
    sys.exit(0 if equal and len(done) == chosen.kills else 1)


if __name__ == "__main__":
    main()
