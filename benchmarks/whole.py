"""What a user waits for: the whole of `fieldwise train`, from a prepared folder to the bundle, beside its steps alone.

    python benchmarks/whole.py [--kind criteo] [--rows 120000] [--models fnn,ipnn,pin] [--device cpu]
        [--precision float32] [--set KEY=VALUE ...] [--folder DIR]

A world's log is prepared straight into ids. Then each model trains one epoch of it in a process of its own, twice:
first with an empty cache of torch's compiler, then with the cache of the first time. `python` is the process before
and after the run (imports, leaving), the other parts are the run's own (`times` in report.json). The steps alone are
timed as the bench does, on the same rows with the same settings, in a third process after its first steps. The last
columns are the whole over the steps alone, and both in processor seconds, which say more on a busy machine; there set
OMP_NUM_THREADS=1 too, because threads that wait for each other run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset

WARM_UP, STEPS = 8, 400


def processor_seconds(whose: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def steps_alone(run: Path, data: Path) -> tuple[float, float]:
    """Seconds that the run's steps take in one epoch, without anything else, from those after the first ones; and
    processor seconds."""
    # Not above: it loads torch, which only this process needs.
    import torch

    from fieldwise.models import MODELS, build
    from fieldwise.speed.ceilings import synchronize
    from fieldwise.train.steps import make_step

    config, dataset = load_config(run / "config.toml"), Dataset.open(data)
    device = torch.device(json.loads((run / "log.jsonl").read_text(encoding="utf-8").splitlines()[0])["device"])
    assert config.model in MODELS
    model: Any = build(config.model, dataset.layout, config.options)
    part = dataset.training(config.seed, config.train.hide)
    steps = part.rows // config.train.batch_size
    step = make_step(model.to(device).train(), config, 10**6)
    source = itertools.chain.from_iterable(step.batches(part, epoch) for epoch in itertools.count())
    count = min(steps, STEPS)
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            step.flush()
            synchronize(device)
            began, used = time.perf_counter(), processor_seconds()
        step.run(next(source), number)
    step.flush()
    synchronize(device)
    share = steps / count
    return (time.perf_counter() - began) * share, (processor_seconds() - used) * share


def whole(model: str, data: Path, out: Path, asked: argparse.Namespace, cache: Path) -> tuple[dict[str, float], float]:
    """Seconds of each part of one run in a process of its own, and its processor seconds."""
    shutil.rmtree(out, ignore_errors=True)
    settings = ["train.epochs=1", "train.batch_size=2000", f"train.precision={asked.precision}", *asked.set]
    given = list(itertools.chain.from_iterable(("--set", setting) for setting in settings))
    command = [sys.executable, "-m", "fieldwise", "train", str(data), "--model", model, "--device", asked.device]
    began, used = time.perf_counter(), processor_seconds(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    subprocess.run(
        [*command, *given, "--out", str(out), "--json"], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    seconds, used = time.perf_counter() - began, processor_seconds(resource.RUSAGE_CHILDREN) - used
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {"python": seconds - sum(report["times"].values()), **report["times"]}, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="criteo")
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--models", default="fnn,ipnn,pin")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--steps-of", type=Path, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.steps_of:
        print(*steps_alone(*asked.steps_of))
        return
    with tempfile.TemporaryDirectory() as own:
        folder = asked.folder or Path(own)
        data = folder / "data"
        if not data.exists():
            simulate = ["simulate", "--kind", asked.kind, "--layout", "ids", "--rows", str(asked.rows)]
            command = [sys.executable, "-m", "fieldwise", *simulate, "--out", str(data), "--json"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for model in asked.models.split(","):
            cache, out = folder / f"cache-{model}", folder / model
            shutil.rmtree(cache, ignore_errors=True)
            found = {name: whole(model, data, out, asked, cache) for name in ("cold", "warm")}
            alone = [sys.executable, __file__, "--steps-of", str(out), str(data)]
            said = subprocess.run(alone, check=True, capture_output=True, text=True).stdout
            steps, busy = map(float, said.split())
            for name, (parts, used) in found.items():
                each = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
                total = sum(parts.values())
                ratios = f"steps alone {steps:.2f}, {total / steps:.2f}; processor {used:.2f}, {used / busy:.2f}"
                print(f"{model:8}{name:6}{total:8.2f} s: {each}; {ratios}", flush=True)


if __name__ == "__main__":
    main()
