"""Many training runs, in sequence or in parallel; finished runs are kept, killed ones are continued."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldwise.config.errors import FieldwiseError
from fieldwise.config.progress import Progress, Watch
from fieldwise.config.settings import load_config
from fieldwise.train.loop import train


@dataclass(frozen=True)
class Job:
    """One run: a recipe (or the defaults), settings that override it, and its folder.

    Runs of a `group`, such as a model's seeds, take about the same time; if one fails, the rest is skipped.
    """

    group: str
    name: str
    data: Path
    out: Path
    recipe: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return (self.out / "DONE").exists()

    @property
    def seconds(self) -> float:
        """The training time of a finished run."""
        return float(json.loads((self.out / "report.json").read_text(encoding="utf-8"))["seconds"])

    def attempt(self, progress: Progress | None = None) -> str:
        """Trains, continues, or checks that a finished run has these settings; returns the error in one line, or ''."""
        try:
            train(load_config(self.recipe, base=self.settings), self.data, self.out, resume=True, progress=progress)
        except FieldwiseError as error:
            return str(error)
        except Exception as error:
            words = str(error).splitlines() or [""]
            return f"{type(error).__name__}: {words[0]}; see it with `fieldwise train ... --debug`"
        return ""


@dataclass
class Board:
    """The state of all jobs."""

    jobs: Sequence[Job]
    workers: int
    watch: Watch
    failures: dict[str, str] = field(default_factory=dict)
    done: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def left(self, waiting: Sequence[Job]) -> float | None:
        """Estimated seconds left, by the mean time of the group's runs, or of all; None before the first is done."""
        known = [seconds for group in self.seconds.values() for seconds in group]
        if not known:
            return None
        return sum(fmean(self.seconds.get(job.group, known)) for job in waiting) / self.workers

    def begin(self, running: Sequence[Job], waiting: Sequence[Job]) -> None:
        self.watch.moved([job.name for job in running], self.done, len(self.jobs), self.left([*running, *waiting]))

    def end(self, job: Job, problem: str, seconds: float) -> None:
        self.done += 1
        if problem:
            self.failures.setdefault(job.group, problem)
        else:
            self.seconds.setdefault(job.group, []).append(seconds)


def run_all(jobs: Sequence[Job], workers: int = 1, watch: Watch | None = None) -> dict[str, str]:
    """Trains all unfinished jobs, `workers` at a time; returns the error of each group that failed."""
    board = Board(jobs, workers, watch or Watch())
    for job in jobs:
        if job.done and job.group not in board.failures:
            problem = job.attempt()
            board.end(job, problem, 0.0 if problem else job.seconds)
    waiting = [job for job in jobs if not job.done]
    (_one_by_one if workers == 1 else _side_by_side)(waiting, board)
    board.begin([], [])
    return board.failures


def _one_by_one(waiting: list[Job], board: Board) -> None:
    while waiting:
        job = waiting.pop(0)
        if job.group in board.failures:
            continue
        board.begin([job], waiting)
        began = time.monotonic()
        board.end(job, job.attempt(board.watch), time.monotonic() - began)


def _side_by_side(waiting: list[Job], board: Board) -> None:
    """Each run has its own process: one that is killed, such as for lack of memory, does not affect the others."""
    running: dict[Any, tuple[Any, Any, Job, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < board.workers:
                job = waiting.pop(0)
                if job.group not in board.failures:
                    process, answer = _start(job, board.workers)
                    running[process.sentinel] = (process, answer, job, time.monotonic())
            board.begin([job for _, _, job, _ in running.values()], waiting)
            for sentinel in connection.wait(list(running)):
                process, answer, job, began = running.pop(sentinel)
                board.end(job, _outcome(process, answer), time.monotonic() - began)
    finally:
        for process, *_ in running.values():
            process.kill()
            process.join()


def _start(job: Job, workers: int) -> tuple[Any, Any]:
    context = multiprocessing.get_context("spawn")
    answer, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, sender), daemon=True)
    with _threads(max(1, (os.cpu_count() or 1) // workers)):
        process.start()
    sender.close()
    return process, answer


def _outcome(process: Any, answer: Any) -> str:
    """The error that an ended process sent, or one made from its exit code."""
    process.join()
    try:
        return str(answer.recv())
    except EOFError:
        return f"its process ended with code {process.exitcode}, perhaps for lack of memory; try fewer --jobs"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the number of threads of processes started in the block, unless the user has set it."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


def _child(job: Job, sender: Any) -> None:
    # Ctrl-C reaches all processes; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sender.send(job.attempt())


def _die_with_parent() -> None:
    """Exits with the parent: one that was killed cannot end its children, and they would write beside new ones."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
