"""Many training runs, in sequence or in parallel; finished runs are kept, killed ones are continued."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldwise.bundle.scoring import device_of
from fieldwise.config.errors import FieldwiseError, TooLarge
from fieldwise.config.interrupts import check
from fieldwise.config.progress import Progress, Watch
from fieldwise.config.settings import load_config
from fieldwise.experiments import gpu_sharing
from fieldwise.train.loop import train
from fieldwise.train.race import Race

# How long a process may take to end by itself before it is killed.
SECONDS_TO_END = 10.0
DIED = "its process ended with code"


class NoRoom(str):
    """The error of a run that found too little memory; it may find enough when one of those beside it has ended."""


@dataclass(frozen=True)
class Job:
    """One run: a recipe (or the defaults), settings that override it, and its folder.

    Runs of a `group`, such as a model's seeds, take about the same time; if one fails, the rest is skipped. `unneeded`
    folders of the run are removed once it is done: of many runs one is predicted with, and the optimiser's state of all
    others is several times as large as their weights.
    """

    group: str
    name: str
    data: Path
    out: Path
    recipe: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    unneeded: tuple[str, ...] = ("checkpoint",)
    race: Race = field(default_factory=Race)

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
            config = load_config(self.recipe, base=self.settings)
            # A page measures the pairs of fields where it shows them.
            train(config, self.data, self.out, resume=True, progress=progress, pairs=False, race=self.race)
        except TooLarge as error:
            return NoRoom(error)
        except FieldwiseError as error:
            return str(error)
        except Exception as error:
            check()
            # torch's, which a comparison of few rows does not load
            return (NoRoom if type(error).__name__ == "OutOfMemoryError" else str)(_in_words(error))
        for name in self.unneeded:
            shutil.rmtree(self.out / name, ignore_errors=True)
        return ""


def _in_words(error: Exception) -> str:
    """An error that is no user's mistake, in one line."""
    words = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {words[0]}; see it with `fieldwise train ... --debug`"


@dataclass
class Board:
    """The state of all jobs."""

    jobs: list[Job]
    workers: int
    watch: Watch
    failures: dict[str, str] = field(default_factory=dict)
    done: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def left(self, waiting: Sequence[Job]) -> float | None:
        """Estimated seconds left, by the mean time of the group's runs, or of all; None before the first is done."""
        known = [seconds for group in self.seconds.values() for seconds in group]
        if not known:
            return None
        return sum(fmean(self.seconds.get(job.group, known)) for job in waiting) / self.workers

    def skips(self, job: Job) -> bool:
        """Whether a job has no use: one of its group has failed, or its time is up and there is a finished run."""
        return job.group in self.failures or (job.race.late and any(self.seconds.values()))

    def waits(self, job: Job, problem: str, beside: int) -> bool:
        """Whether a run that found too little memory goes on when one of the `beside` others has ended, which then are
        as many as there is room for. A process that died may have had another reason: it gets one more try."""
        if not isinstance(problem, NoRoom) or not beside or job.name in self.lost:
            return False
        if problem.startswith(DIED):
            self.lost.add(job.name)
        self.workers = beside
        return True

    def begin(self, running: Sequence[Job], waiting: Sequence[Job]) -> None:
        self.watch.moved([job.name for job in running], self.done, len(self.jobs), self.left([*running, *waiting]))

    def end(self, job: Job, problem: str, seconds: float) -> None:
        self.done += 1
        if problem:
            self.failures.setdefault(job.group, problem)
        else:
            self.seconds.setdefault(job.group, []).append(seconds)


class Feed:
    """Jobs that are put in while others run. `ended` is called with each that has ended, and its error or ''.

    Other threads put jobs in, and may change `workers`, the number of runs at a time.
    """

    def __init__(self, workers: int, ended: Callable[[Job, str], None] = lambda job, problem: None) -> None:
        self.workers, self.ended, self.open = workers, ended, True
        self.heard, self._bell = multiprocessing.Pipe(duplex=False)
        self._new: deque[Job] = deque()

    def put(self, jobs: Iterable[Job]) -> None:
        self._new.extend(jobs)
        self._bell.send(None)

    def close(self) -> None:
        """No more jobs will come."""
        self.open = False
        self._bell.send(None)

    def taken(self) -> list[Job]:
        """The jobs that are new since the last call."""
        while self.heard.poll():
            self.heard.recv()
        return [self._new.popleft() for _ in range(len(self._new))]


def run_all(jobs: Sequence[Job], workers: int = 1, watch: Watch | None = None) -> dict[str, str]:
    """Trains all unfinished jobs, `workers` at a time; returns the error of each group that failed."""
    if workers == 1:
        return _one_by_one(jobs, Board([], workers, watch or Watch()))
    feed = Feed(workers)
    feed.put(jobs)
    feed.close()
    return run_fed(feed, any(_on_gpu(job) for job in jobs if not job.done), watch)


def run_fed(feed: Feed, on_gpu: bool, watch: Watch | None = None) -> dict[str, str]:
    """Trains the jobs that are put into a feed, until it is closed; returns the error of each group that failed."""
    board = Board([], feed.workers, watch or Watch())
    with gpu_sharing.side_by_side() if on_gpu else nullcontext():
        _side_by_side(board, feed)
    return board.failures


def _on_gpu(job: Job) -> bool:
    return device_of(load_config(job.recipe, base=job.settings).device).type == "cuda"


def _one_by_one(jobs: Sequence[Job], board: Board) -> dict[str, str]:
    waiting = _unfinished(jobs, board)
    while waiting:
        check()
        job = waiting.pop(0)
        if board.skips(job):
            continue
        board.begin([job], waiting)
        began = time.monotonic()
        board.end(job, job.attempt(board.watch), time.monotonic() - began)
    board.begin([], [])
    return board.failures


def _unfinished(jobs: Sequence[Job], board: Board, feed: Feed | None = None) -> list[Job]:
    """The jobs that are left to do, once those that are done have been checked."""
    board.jobs += jobs
    for job in jobs:
        if not job.done:
            continue
        problem = board.failures.get(job.group, "")
        if not problem:
            problem = job.attempt()
            board.end(job, problem, 0.0 if problem else job.seconds)
        if feed:
            feed.ended(job, problem)
    return [job for job in jobs if not job.done]


class Worker:
    """A process that runs one job after another: it imports torch, and takes its place on a GPU, once."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _threads(max(1, (os.cpu_count() or 1) // workers)):
            self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.began = 0.0

    def take(self, job: Job) -> None:
        self.job, self.began = job, time.monotonic()
        with suppress(OSError):  # a process that has died meanwhile: `ended` says so
            self.pipe.send(job)

    def ended(self) -> tuple[Job, str, float]:
        """The job that has ended, its error or, if its process ended too, one made from the exit code, its seconds."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            problem: str = self.pipe.recv()
        except (EOFError, OSError):  # killed before it had read the job, the pipe is reset
            self.process.join()
            code = self.process.exitcode
            problem = NoRoom(f"{DIED} {code}, perhaps for lack of memory; try fewer --jobs")
        return job, problem, time.monotonic() - self.began

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def dismiss(self) -> None:
        """Lets a process without a job end by itself, so that it can put away what its libraries hold."""
        with suppress(OSError):
            self.pipe.send(None)


def _side_by_side(board: Board, feed: Feed) -> None:
    """Each run is in a process beside the others: one that is killed, such as for lack of memory, is replaced."""
    workers: list[Worker] = []
    waiting: list[Job] = []
    allowed = feed.workers
    try:
        while True:
            if feed.workers != allowed:
                allowed = board.workers = feed.workers
            found, is_open = feed.taken(), feed.open
            # What was put in before it was closed.
            waiting += _unfinished(found if is_open else found + feed.taken(), board, feed)
            workers = [worker for worker in workers if worker.job or worker.process.is_alive()]
            while waiting and len(busy := [worker for worker in workers if worker.job]) < board.workers:
                job = waiting.pop(0)
                if board.skips(job):
                    feed.ended(job, board.failures.get(job.group, "its time was up"))
                    continue
                if len(busy) == len(workers):
                    workers.append(Worker(allowed))
                next(worker for worker in workers if not worker.job).take(job)
            running = {worker.pipe: worker for worker in workers if worker.job}
            board.begin([worker.job for worker in running.values() if worker.job], waiting)
            if not running and not waiting and not is_open:
                return
            check()
            ready = connection.wait([*running, feed.heard] if is_open else list(running))
            for worker in [running[one] for one in ready if one in running]:
                job, problem, seconds = worker.ended()
                if board.waits(job, problem, sum(other.job is not None for other in workers)):
                    waiting.insert(0, job)
                else:
                    board.end(job, problem, seconds)
                    feed.ended(job, problem)
    finally:
        idle = [worker for worker in workers if not worker.job]
        for worker in idle:
            worker.dismiss()
        for worker in idle:
            worker.process.join(SECONDS_TO_END)
        for worker in workers:
            worker.kill()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the number of threads, and of the compiler's, of processes started in the block, unless the user has."""
    names = [name for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS") if name not in os.environ]
    os.environ |= dict.fromkeys(names, str(count))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _serve(pipe: Any) -> None:
    # Ctrl-C reaches all processes; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while (job := pipe.recv()) is not None:
        pipe.send(job.attempt())
        # What a run took of a GPU stays with its process otherwise, and other processes find no room.
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()


def _die_with_parent() -> None:
    """Exits with the parent: one that was killed cannot end its children, and they would write beside new ones."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
