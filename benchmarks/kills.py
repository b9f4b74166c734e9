"""Killed at random moments and resumed: are the final weights, bit for bit, those of a run that was never stopped?

    python benchmarks/kills.py [--kills 20] [--seed 0] [--only ftrl ...]

For each optimiser a process `python -m fieldwise train` is killed (SIGKILL) so many times and started again with
--resume. The moments are spread over the whole run: while it starts, between steps, in the middle of a checkpoint,
while the bundle is written. Exits with 1 if a weight or a line of the log differs. Two minutes for each optimiser.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fieldwise.bundle.bundle import load_encoder
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World

CASES = {
    "adam paper": [],
    "adam lazy": ["train.sparse_mode=lazy"],
    "adam dense": ["train.sparse_mode=dense"],
    "adagrad": ["train.optimizer=adagrad", "train.lr=0.05"],
    "ftrl": ["train.optimizer=ftrl", "train.lr=0.05"],
    "sgd": ["train.optimizer=sgd"],
    "continued": [],
}
# Dropout draws random numbers; a checkpoint every 12 ms lets some steps be lost and many kills fall into a write.
SETTINGS = ["model.name=pin", "model.dim=4", "model.subnet=4,2", "model.hidden=[16]", "model.dropout=0.2"]
TRAINING = ["train.epochs=12", "train.patience=1000", "train.batch_size=32", "train.checkpoint_minutes=0.0002"]
POLL = 0.003


@dataclass
class Clock:
    """When a whole run made its first checkpoint and its last, and when it was DONE, in seconds; and its steps."""

    first: float
    last: float
    done: float
    steps: int


class Runs:
    """Starts runs of one case; each is the same command but for its folder."""

    def __init__(self, data: Path, folder: Path, settings: list[str], origin: Path | None) -> None:
        self.folder = folder
        chosen = [f"--set={setting}" for setting in settings]
        more = ["--continue-from", str(origin)] if origin else []
        self.command = [sys.executable, "-m", "fieldwise", "train", str(data), *chosen, *more, "--json", "--resume"]
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.command, "--out", str(out)], env=self.environment, stdout=subprocess.DEVNULL)

    def whole(self) -> tuple[Path, Clock]:
        """A run that is never stopped."""
        out, began, first, last, step = self.folder / "whole", time.monotonic(), 0.0, 0.0, -1
        process = self.start(out)
        while process.poll() is None and not (out / "DONE").exists():
            found = newest(out)
            if found > step:
                last = time.monotonic() - began
                step, first = found, first or last
            time.sleep(POLL)
        done = time.monotonic() - began
        if process.wait():
            sys.exit(f"the run that nobody kills failed ({out})")
        return out, Clock(first, last, done, step)

    def killed(self, out: Path, moments: list[float], clock: Clock, draw: random.Random) -> dict[str, int]:
        """Kills a run at these shares of its steps (0: while it starts, 1: while it ends); counts where they fell."""
        found: dict[str, int] = {}
        for moment in moments:
            process = self.start(out)
            self._wait(process, out, moment, clock, draw)
            if (out / "DONE").exists():
                process.wait()
                break
            if process.poll() is not None:
                sys.exit(f"the run failed by itself ({out})")
            process.send_signal(signal.SIGKILL)
            process.wait()
            where = place_of(out, clock) if moment else "starting"
            found[where] = found.get(where, 0) + 1
        if self.start(out).wait():
            sys.exit(f"the run does not resume ({out})")
        return found

    def _wait(
        self, process: subprocess.Popen[bytes], out: Path, moment: float, clock: Clock, draw: random.Random
    ) -> None:
        begun = newest(out)
        if moment == 0:
            time.sleep(draw.uniform(0, clock.first))
        elif begun >= clock.steps:
            time.sleep(draw.uniform(0, clock.first + clock.done - clock.last))
        else:
            target = min(clock.steps, max(begun + 1, round(moment * clock.steps)))
            while process.poll() is None and newest(out) < target:
                time.sleep(POLL)
            time.sleep(draw.uniform(0, clock.done - clock.last if target == clock.steps else 0.05))


def newest(out: Path) -> int:
    """The step of the newest whole checkpoint, -1 without one."""
    names = os.listdir(out / "checkpoint") if (out / "checkpoint").is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def place_of(out: Path, clock: Clock) -> str:
    """What a killed run was doing, by what it left."""
    if any(path.name.startswith(".") for path in (out / "checkpoint").iterdir()):
        return "in a checkpoint"
    return "ending" if newest(out) >= clock.steps else "between"


def outcome(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The final weights, and the log but for its clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return load_file(out / "bundle" / "weights.safetensors"), [
        {key: value for key, value in line.items() if key != "rows_per_s"} for line in lines
    ]


def differences(one: Path, two: Path) -> set[str]:
    """What two runs did not end with the same bits of: weights, log."""
    (weights, log), (others, other_log) = outcome(one), outcome(two)
    equal = weights.keys() == others.keys() and all(weights[name].equal(others[name]) for name in weights)
    return ({"weights"} if not equal else set()) | ({"log"} if log != other_log else set())


def spread(kills: int, draw: random.Random) -> list[float]:
    """Moments of a run: a tenth of them while it starts, a tenth while it ends, the others at rising shares."""
    few = kills // 10
    rising = sorted(draw.random() for _ in range(kills - 2 * few)) + [1.0] * few
    for _ in range(few):
        rising.insert(draw.randrange(len(rising)), 0.0)
    return rising


def try_case(name: str, folder: Path, kills: int, seed: int) -> bool:
    """Kills runs of one case until enough kills have hit; every run must end like the whole one."""
    draw = random.Random(f"{name} {seed}")
    origin = folder / "origin" if name == "continued" else None
    settings = TRAINING + CASES[name] if origin else SETTINGS + TRAINING + CASES[name]
    case = folder / name.replace(" ", "-")
    runs = Runs(folder / ("data2" if origin else "data1"), case, settings, origin)
    began = time.monotonic()
    whole, clock = runs.whole()
    places: dict[str, int] = {}
    odd: set[str] = set()
    number = 0
    while sum(places.values()) < kills:
        out = case / f"killed-{number}"
        for place, n in runs.killed(out, spread(kills - sum(places.values()), draw), clock, draw).items():
            places[place] = places.get(place, 0) + n
        odd |= differences(whole, out)
        number += 1
    shown = ", ".join(f"{n} {place}" for place, n in sorted(places.items()))
    verdict = " and ".join(sorted(odd)) + " DIFFERENT" if odd else "identical"
    print(f"{name:12}{sum(places.values()):3} kills ({shown}) of {clock.steps} steps: {verdict}", end="", flush=True)
    print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    return not odd


def make_data(folder: Path) -> None:
    """Rows to train on, a trained run to continue, and later rows for it."""
    logs = [World("demo").log(800, first_day=first, last_day=first + 4).table.drop_columns(["day"]) for first in (0, 5)]
    prepare({"train": lambda: iter([logs[0]])}, folder / "data1", "click")
    runs = Runs(folder / "data1", folder, [*SETTINGS, *TRAINING, "train.epochs=1"], None)
    if runs.start(folder / "origin").wait():
        sys.exit("the run to continue failed")
    prepare({"train": lambda: iter([logs[1]])}, folder / "data2", "click", known=load_encoder(folder / "origin"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills training runs and compares what they end with.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        found = [try_case(name, Path(folder), chosen.kills, chosen.seed) for name in chosen.only]
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
