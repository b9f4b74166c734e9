"""Runs a study: prepares its data, trains its unfinished runs, and writes table, figure and verdicts.

OUT/ID/SIZE/  data/NAME  runs/CASE/seedN  identity.json  runs.csv  table.md  table.csv  figure.svg  figure.png
              verdicts.txt  result.json
OUT/data/     rows that several studies read
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fieldwise.bundle.scoring import device_of
from fieldwise.config.errors import ConfigError, TrainingError, unknown
from fieldwise.config.files import held_folder, turn, whole_file, write_whole
from fieldwise.config.progress import Watch
from fieldwise.experiments.jobs import Job, run_all
from fieldwise.nn.tree_models import TREES
from fieldwise.reporting import plots, result_tables
from fieldwise.studies.study import SIZES, Case, Plan, Results, Row, Setup, Shared, Source, Study

# What a run takes of a GPU beside its rows: the context, tables, their moments and average, a captured step.
RUN_BYTES = 8 * 2**30
# What every run reports, as columns that claims and tables may use.
MEASURED = ("auc", "log_loss", "calibration")


def run_study(
    study: Study,
    out: Path,
    size: str = "small",
    data: Path | None = None,
    seeds: int | None = None,
    workers: int = 0,
    watch: Watch | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Runs or continues a study and returns its table and verdicts. A claim that fails is a result, not an error."""
    setup = setup_of(study, size, data, seeds, device)
    with ExitStack() as held:
        folder = held.enter_context(claimed(out, study.id, setup))
        if study.compute is not None:
            return written(study, setup, Results(study.compute(setup)), folder)
        rows: list[Row] = []
        for own in runs_of(study, setup, out):
            if own.other:
                held.enter_context(claimed(out, own.name, setup))
            own.make()
            together = workers or own.fitting
            failures: dict[str, str] = {}
            for wave in own.waves:
                failures |= run_all(wave, max(1, min(together, sum(not job.done for job in wave))), watch)
            rows += own.rows(failures)
        return written(study, setup, Results(rows), folder)


def setup_of(study: Study, size: str, data: Path | None, seeds: int | None, device: str) -> Setup:
    """What a study is to be run with; refuses what it cannot be."""
    if size not in SIZES:
        raise ConfigError(unknown("size", size, SIZES))
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, found {seeds}")
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data takes a folder, found none ({data})")
    device_of(device)  # refuses an unknown or missing device before anything is written
    return Setup(size, seeds or study.seeds[size], data, device)


@contextmanager
def claimed(out: Path, name: str, setup: Setup) -> Iterator[Path]:
    """The folder of a study, locked for this process."""
    folder, data = out / name / setup.size, setup.data
    begun: Row = {"study": name, "size": setup.size, "data": str(data.resolve()) if data else None}
    with held_folder(folder, f"at the study in {folder}"):
        _claim(folder, begun | {"device": setup.device})
        yield folder


def _claim(folder: Path, identity: Row) -> None:
    """Takes a new folder or one of the same study; refuses any other."""
    known = folder / "identity.json"
    if known.exists():
        if json.loads(known.read_text(encoding="utf-8")) != identity:
            raise TrainingError(f"the study was begun with other --data or --device; choose another --out ({folder})")
        return
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise TrainingError(f"{folder} holds something that is no study; choose another --out")
    write_whole(known, json.dumps(identity))


@dataclass(frozen=True)
class Runs:
    """The runs of a plan, in the folder of the study that it is of; `study` is the one that looks at them."""

    study: Study
    setup: Setup
    plan: Plan
    folder: Path
    other: bool = False

    @property
    def name(self) -> str:
        """The id of the study whose folder has the runs."""
        return self.folder.parent.name

    @cached_property
    def jobs(self) -> list[Job]:
        """A job for each case."""
        starts = {case.start for case in self.plan.cases}
        kept = [self.study.weights or case.name in starts for case in self.plan.cases]
        both = zip(self.plan.cases, kept, strict=True)
        return [_job(case, self.folder, self.setup.device, weights) for case, weights in both]

    @property
    def waves(self) -> list[list[Job]]:
        """The jobs, and behind them those that start from weights of others."""
        both = list(zip(self.plan.cases, self.jobs, strict=True))
        found = [[job for case, job in both if bool(case.start) == later] for later in (False, True)]
        return [wave for wave in found if wave]

    @property
    def fitting(self) -> int:
        """How many of the runs fit beside each other, once their rows are made."""
        return _fitting_runs({job.data for job in self.jobs}, device_of(self.setup.device))

    def make(self) -> None:
        """Prepares the rows that are not there."""
        for name, source in self.plan.sources.items():
            if not (self.folder / "data" / name / "data.json").exists():
                _make(source, self.folder / "data" / name, self.folder.parents[1] / "data")

    def rows(self, failures: Mapping[str, str]) -> list[Row]:
        """A row for each case: its keys, its seed, and the run's metrics on held-out rows or why it failed."""
        rows = []
        for case, job in zip(self.plan.cases, self.jobs, strict=True):
            row: Row = ({"study": self.name} if self.other else {}) | {**case.keys, "seed": case.seed}
            if job.done:
                row |= _measured(job.out) | (self.study.look(case, job.out) if self.study.look else {})
            else:
                row["failed"] = failures.get(job.group, "it was left out after another seed failed")
            rows.append(row)
        return rows


def runs_of(study: Study, setup: Setup, out: Path) -> list[Runs]:
    """The runs that a study trains, and those of other studies that it uses."""
    assert study.plan is not None
    plan = study.plan(setup)
    others = [Runs(study, setup, other, out / name / setup.size, True) for name, other in plan.others.items()]
    return [Runs(study, setup, plan, out / study.id / setup.size), *others]


def _make(source: Source, place: Path, worlds: Path) -> None:
    """Prepares the rows of a study; those that others share lie in `worlds`, and the study has a link to them."""
    if not isinstance(source, Shared):
        source(place)
        return
    shared = worlds / source.name
    worlds.mkdir(exist_ok=True)
    with turn(worlds):
        if not (shared / "data.json").exists():
            source(shared)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(shared, place.parent))


def _fitting_runs(data: Iterable[Path], device: torch.device) -> int:
    """How many runs fit beside each other: one for each core, or on a GPU half as many, if its memory holds them.

    At the paper's batch a small model leaves most of a GPU idle, so that several share it well.
    """
    cores = os.cpu_count() or 1
    if device.type != "cuda":
        return cores
    rows = max((sum(file.stat().st_size for file in folder.glob("train/*")) for folder in data), default=0)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(cores // 2, int(free // (rows + RUN_BYTES))))


def _job(case: Case, folder: Path, device: str, weights: bool) -> Job:
    # The paper's models learn from the rows as they are; trees always do.
    plain = {} if case.settings.get("model.name") in TREES else {"train.hide": False}
    settings = {"device": device, **plain, **case.settings, "seed": case.seed}
    if case.start:
        settings["train.init_from"] = str(_run_folder(folder, case.start, case.seed))
    group, name, place = (
        f"{folder.parent.name} {case.name} {case.seed}",
        f"{case.name} seed {case.seed}",
        _run_folder(folder, case.name, case.seed),
    )
    unneeded = ("checkpoint",) if weights else ("checkpoint", "bundle")
    return Job(group, name, folder / "data" / case.data, place, None, settings, unneeded)


def _run_folder(folder: Path, name: str, seed: int) -> Path:
    return folder / "runs" / _file_name(name) / f"seed{seed}"


def _file_name(name: str) -> str:
    """A valid folder name; a digest is added if characters were replaced, so different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", name)
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _measured(run: Path) -> Row:
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    held = report["test"] if "test" in report else report["valid"]
    found = {name: held[name] for name in MEASURED} | {f"valid_{name}": report["valid"][name] for name in MEASURED}
    return found | {name: report[name] for name in ("parameters", "seconds", "rows_per_s", "best_epoch")}


def written(study: Study, setup: Setup, runs: Results, folder: Path) -> dict[str, Any]:
    results = study.derived(runs)
    rows = results.summed_up(study.keys, study.columns)
    verdicts = study.verdicts(runs)
    lines = result_tables.lines(rows, study.columns)
    failed = [
        f"{row['name']}: {row['failed']} of {row['seeds']} runs failed ({_why(results, study, row)})"
        for row in rows
        if row["failed"]
    ]
    verdict_lines = [str(verdict) for verdict in verdicts]
    table = result_tables.markdown(study.columns, lines, " ".join(study.keys).capitalize())
    text = "\n".join([f"# {study.paper}\n\n{study.asks}\n", table, *failed, *verdict_lines, ""])
    write_whole(folder / "table.md", text)
    _write_csv(folder / "table.csv", rows)
    _write_csv(folder / "runs.csv", runs.rows)
    write_whole(folder / "verdicts.txt", "".join(f"{line}\n" for line in verdict_lines))
    plots.save(study.draw(results), folder / "figure", f"{study.paper}: {study.asks}")
    result = {
        "study": study.id,
        "paper": study.paper,
        "asks": study.asks,
        "size": setup.size,
        "seeds": runs.seeds,
        "folder": str(folder),
        "rows": rows,
        "verdicts": [verdict.as_json() for verdict in verdicts],
        "lines": verdict_lines,
        "failed": failed,
    }
    write_whole(folder / "result.json", json.dumps(result, indent=1))
    return result


def _why(results: Results, study: Study, row: Row) -> str:
    """The error of the first failed run of this case."""
    own = results.where(**{key: row[key] for key in study.keys})
    return str(next(one["failed"] for one in own.rows if "failed" in one))


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row if name != "name" and name[0] != "_"))
    with whole_file(path) as file, file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
