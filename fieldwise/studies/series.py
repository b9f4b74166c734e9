"""Many studies at once: rows are made, and results looked at and written, while runs of any of them train.

One study after the other leaves cores and GPU idle while a world is drawn, while the last runs end, and while processes
start. Here a thread makes the rows of study after study, all runs go through one pool of processes, and other threads
compute what trains nothing and write what is complete.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldwise.bundle.scoring import device_of
from fieldwise.config.errors import FieldwiseError
from fieldwise.config.progress import Watch
from fieldwise.experiments.jobs import Feed, Job, run_fed
from fieldwise.studies.runner import Runs, claimed, runs_of, setup_of, written
from fieldwise.studies.study import Results, Setup, Study

# Called with each study that has ended, and its result or its error.
Done = Callable[[Study, dict[str, Any] | FieldwiseError], None]


@dataclass
class Member:
    """A study of a series: its runs, the waves of jobs that are still to come, and the jobs that it waits for."""

    study: Study
    setup: Setup
    folder: Path
    runs: list[Runs]
    waves: list[list[Job]] = field(default_factory=list)
    left: set[Path] = field(default_factory=set)


def run_studies(
    studies: Sequence[Study],
    out: Path,
    done: Done,
    size: str = "small",
    data: Path | None = None,
    seeds: int | None = None,
    workers: int = 0,
    watch: Watch | None = None,
    device: str = "cpu",
) -> None:
    """Runs or continues studies, and calls `done` with each as soon as it has ended."""
    setups = [setup_of(study, size, data, seeds, device) for study in studies]
    with ExitStack() as held:
        members = []
        for study, setup in zip(studies, setups, strict=True):
            runs = runs_of(study, setup, out) if study.plan else []
            members.append(Member(study, setup, out / study.id / size, runs))
        names = [member.study.id for member in members] + [own.name for member in members for own in member.runs]
        for name in dict.fromkeys(names):
            held.enter_context(claimed(out, name, setups[0]))
        Series(members, workers, done).run(watch, device_of(device).type == "cuda")


class Series:
    """The state of studies that run at once; the lock is for what several threads change."""

    def __init__(self, members: Sequence[Member], workers: int, done: Done) -> None:
        self.planned = [member for member in members if member.runs]
        self.computed = [member for member in members if not member.runs]
        self.asked, self.done = workers, done
        self.feed = Feed(workers or 1, self._ended)
        self.lock = threading.RLock()
        self.drawing = threading.Lock()
        self.given: set[Path] = set()
        self.over: set[Path] = set()
        self.failures: dict[str, str] = {}
        self.open = len(self.planned)
        self.complete: queue.SimpleQueue[Member | None] = queue.SimpleQueue()
        self.broken: list[BaseException] = []

    def run(self, watch: Watch | None, on_gpu: bool) -> None:
        """Runs all; an error that is no user's mistake is raised in the end."""
        threads = [threading.Thread(target=own, daemon=True) for own in (self._make, self._write, self._compute)]
        for thread in threads:
            thread.start()
        run_fed(self.feed, on_gpu, watch)
        for thread in threads:
            thread.join()
        if self.broken:
            raise self.broken[0]

    def _make(self) -> None:
        """Makes the rows of each study, and gives its jobs to the pool."""
        if not self.planned:
            self.feed.close()
            self.complete.put(None)
        for member in self.planned:
            with self._caught(member) as caught:
                for own in member.runs:
                    own.make()
                self.feed.workers = self.asked or min(own.fitting for own in member.runs)
                with self.lock:
                    member.waves = _joined([own.waves for own in member.runs])
                    self._advance(member)
            if caught.failed:
                self._close(member)

    def _advance(self, member: Member) -> None:
        """Gives the pool the next wave of a member whose last one has ended; without another, it is complete."""
        while member.waves and not member.left:
            wave = member.waves.pop(0)
            member.left = {job.out for job in wave} - self.over
            fresh = {job.out: job for job in wave if job.out not in self.given}
            self.given |= fresh.keys()
            self.feed.put(fresh.values())
        if not member.left:
            self.complete.put(member)
            self._close(member)

    def _close(self, member: Member) -> None:
        """One study less that may have jobs."""
        with self.lock:
            self.open -= 1
            if not self.open:
                self.feed.close()
                self.complete.put(None)

    def _ended(self, job: Job, problem: str) -> None:
        with self.lock:
            self.over.add(job.out)
            if problem:
                self.failures.setdefault(job.group, problem)
            for member in self.planned:
                if job.out in member.left:
                    member.left.discard(job.out)
                    self._advance(member)

    def _write(self) -> None:
        """Looks at the runs of each study that is complete, and writes its results."""
        while (member := self.complete.get()) is not None:
            with self._caught(member):
                rows = [row for own in member.runs for row in own.rows(self.failures)]
                self._written(member, Results(rows))

    def _compute(self) -> None:
        for member in self.computed:
            assert member.study.compute is not None
            with self._caught(member):
                self._written(member, Results(member.study.compute(member.setup)))

    def _written(self, member: Member, results: Results) -> None:
        # Matplotlib draws in one thread at a time.
        with self.drawing:
            self.done(member.study, written(member.study, member.setup, results, member.folder))

    def _caught(self, member: Member) -> Caught:
        return Caught(self, member)


@dataclass
class Caught:
    """A block of one study: its error ends this study, not the others."""

    series: Series
    member: Member
    failed: bool = False

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.failed = error is not None
        if isinstance(error, FieldwiseError):
            self.series.done(self.member.study, error)
        elif error is not None:
            self.series.broken.append(error)
        return True


def _joined(waves: Sequence[list[list[Job]]]) -> list[list[Job]]:
    """The first waves of several plans as one, then their second ones."""
    deepest = max(map(len, waves), default=0)
    return [[job for own in waves if place < len(own) for job in own[place]] for place in range(deepest)]
