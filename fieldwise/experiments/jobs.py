"""Many training runs, one after the other or side by side; what is DONE is kept, what was killed goes on."""

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
    """One run: a recipe (defaults without one), settings stronger than it, and where it goes.

    Runs of one `group`, a model with several seeds, take about as long, and one that fails ends the group.
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
        """How long training took, of a run that is DONE."""
        return float(json.loads((self.out / "report.json").read_text(encoding="utf-8"))["seconds"])

    def attempt(self, progress: Progress | None = None) -> str:
        """Trains, or goes on, or checks that what is DONE is this run; returns what went wrong in one line, or ''."""
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
    """Where all jobs stand."""

    jobs: Sequence[Job]
    workers: int
    watch: Watch
    failures: dict[str, str] = field(default_factory=dict)
    done: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def left(self, waiting: Sequence[Job]) -> float | None:
        """Seconds: a run takes as long as its group's others did, or as all did; None before the first is done."""
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
    """Trains what is not DONE, a few at a time; returns what went wrong with each group that failed."""
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
    """A process for each run, so that one that is killed, for want of memory say, takes no other with it."""
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
    """What an ended process says that went wrong, or what its end says."""
    process.join()
    try:
        return str(answer.recv())
    except EOFError:
        return f"its process ended with code {process.exitcode}, perhaps for want of memory; try fewer --jobs"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the threads of each process started here, unless the user has set them."""
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


def _child(job: Job, sender: Any) -> None:
    # Ctrl-C reaches all processes; the parent decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sender.send(job.attempt())


def _die_with_parent() -> None:
    """A killed parent cannot end its children; on their own they would write beside its successor's."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
