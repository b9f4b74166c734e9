"""`fieldwise follow` killed at random moments: does it end with the journal and the bundle of one that nobody kills?

    python benchmarks/follow_kills.py [--kills 10] [--days 4] [--seed 0] [--model deepfm]

A model with a history follows the days of a simulated log, one file in a round. The process is killed (SIGKILL) at
moments spread over all rounds, and started again. Exits with 1 if a line of the journal differs (but for the clock), or
a byte of the weights, the encoder, the history or the calibration of any version. Some ten seconds for each kill.
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

from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import HistorySettings
from fieldwise.data.world import World, write_log
from fieldwise.train.loop import train

POLL = 0.002
# What a clock says, in lines of the journal; ids are digests of files that have the seconds of the training.
CLOCKS = {"time", "seconds", "id"}
FIRST_DAYS, ROWS = 6, 4000
SETTINGS = ["model.dim=4", "train.epochs=2", "device=cpu"]


class Case:
    """One folder with a link to the model, which follows the same logs."""

    def __init__(self, folder: Path, run: Path, logs: Path) -> None:
        folder.mkdir()
        self.link, self.work = folder / "live", folder / "live.follow"
        self.link.symlink_to(run)
        options = ["--every", "1s", "--min-age", "0s", "--files", "1", "--margin", "3"]
        more = ["--set", "train.epochs=3", "--set", "train.checkpoint_minutes=0.001", "--keep", "100"]
        self.command = [sys.executable, "-m", "fieldwise", "follow", str(logs), "--bundle", str(self.link)]
        self.command += [*options, *more]

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        hidden: dict[str, Any] = {"stdout": subprocess.DEVNULL}
        return subprocess.Popen(self.command, env=environment, **hidden)

    @property
    def lines(self) -> list[dict[str, Any]]:
        path = self.work / "journal.jsonl"
        text = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    @property
    def rounds(self) -> int:
        return sum(line["step"] == "done" for line in self.lines)

    def works(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether this process has begun: it has put its name into the folder."""
        name = self.work / ".holder"
        return name.exists() and name.read_text(encoding="utf-8") == f"pid {process.pid}"

    def finish(self, days: int) -> None:
        """Lets it work until all days are learnt, and ends it as systemd does."""
        process = self.start()
        while process.poll() is None and (self.rounds < days or not self.works(process)):
            time.sleep(POLL)
        process.send_signal(signal.SIGTERM)
        if process.wait() != 143:
            sys.exit(f"follow ended by itself with {process.returncode} ({self.work})")

    def kill_at(self, target: int, later: float) -> str:
        """Kills it some seconds after it works and its journal has so many lines; returns the last of them."""
        process = self.start()
        while process.poll() is None and (len(self.lines) < target or not self.works(process)):
            time.sleep(POLL)
        time.sleep(later)
        if process.poll() is not None:
            sys.exit(f"follow ended by itself with {process.returncode} ({self.work})")
        process.send_signal(signal.SIGKILL)
        process.wait()
        return str(self.lines[-1]["step"]) if self.lines else "nothing"

    def outcome(self) -> dict[str, Any]:
        """The journal without its clock, and what each version predicts by."""
        found: dict[str, Any] = {"target": self.link.resolve().name}
        found["journal"] = [{k: v for k, v in line.items() if k not in CLOCKS} for line in self.lines]
        for folder in sorted((self.work / "bundles").iterdir()):
            files = [folder / "weights.safetensors", folder / "calibration.json", *(folder / "encoder").iterdir()]
            found |= {f"{folder.name} {path.name}": path.read_bytes() for path in files}
        return found


def make(folder: Path, model: str, days: int) -> tuple[Path, Path]:
    """The run to follow, and the folder of later days."""
    world, logs = World("demo", days=FIRST_DAYS + days), folder / "logs"
    logs.mkdir()
    write_log(world, ROWS, folder / "log.csv", 0, False, 0, FIRST_DAYS - 1)
    for day in range(FIRST_DAYS, FIRST_DAYS + days):
        write_log(world, 1500, logs / f"day-{day}.csv", day, False, day, day)
    history = HistorySettings(("user", "item"), time="day", parts=("rate",))
    log = world.log(ROWS, last_day=FIRST_DAYS - 1).table
    split = Split(by="day")
    prepare({"train": lambda: iter([log])}, folder / "data", "click", split=split, drop=("day",), history=history)
    chosen = [f"model.name={model}", *SETTINGS]
    train(load_config(overrides=chosen), folder / "data", folder / "run", pairs=False)
    return folder / "run", logs


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills `fieldwise follow` and compares what it ends with.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="deepfm")
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as name:
        run, logs = make(Path(name), chosen.model, chosen.days)
        whole, killed = (Case(Path(name) / word, run, logs) for word in ("whole", "killed"))
        began = time.monotonic()
        whole.finish(chosen.days)
        lines = len(whole.lines)
        # A line takes so long, but for the start of the process.
        pause = (time.monotonic() - began) / lines
        # Each at another line as long as there are some: a second one would meet a process that has only begun.
        turns = [draw.sample(range(lines), lines) for _ in range(-(-chosen.kills // lines))]
        targets = sorted([target for turn in turns for target in turn][: chosen.kills])
        places = [killed.kill_at(target, draw.uniform(0, pause)) for target in targets]
        killed.finish(chosen.days)
        one, two = whole.outcome(), killed.outcome()
    odd = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    counted = ", ".join(f"{places.count(place)} after '{place}'" for place in dict.fromkeys(places))
    decisions = [line["decision"] for line in one["journal"] if line["step"] == "done"]
    print(f"{chosen.days} rounds ({', '.join(decisions)}), {lines} lines; {chosen.kills} kills: {counted}")
    print(f"DIFFERENT: {', '.join(odd)}" if odd else f"identical: the journal and {len(one) - 2} files of all versions")
    sys.exit(1 if odd else 0)


if __name__ == "__main__":
    main()
