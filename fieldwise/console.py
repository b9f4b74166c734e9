"""What people see while they wait: progress bars on standard error, results on standard output."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fieldwise import runs

out = Console()
err = Console(stderr=True)


def print_json(values: dict[str, Any]) -> None:
    """One JSON object on standard output, for scripts."""
    print(json.dumps(values, allow_nan=False))


class TrainingBar(runs.Progress):
    """A bar with rows/s, loss, validation and the time left."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title = title
        self.note = ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[speed]:>7,.0f} rows/s  loss {task.fields[loss]:.3f}  {task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left at most"),
            console=err,
            disable=quiet,
        )
        self.loss = 0.0

    def start(self, rows: int, epochs: int, done: int) -> None:
        total = rows * epochs
        self.bar.start()
        self.task = self.bar.add_task(self.title, total=total, completed=done, speed=0.0, loss=0.0, note="")

    def step(self, rows: int, loss: float, epoch: int) -> None:
        self.loss = loss if not self.loss else 0.98 * self.loss + 0.02 * loss
        speed = self.bar.tasks[self.task].speed or 0.0
        title = f"{self.title} {epoch:2}"
        self.bar.update(self.task, advance=rows, description=title, speed=speed, loss=self.loss)

    def say(self, text: str) -> None:
        err.print(f"note: {text}", highlight=False, markup=False, soft_wrap=True)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.bar.update(self.task, note=f"valid {record['log_loss']:.4f}")

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


class TuningBar(runs.Progress):
    """A bar for the trial at hand, with the best so far and the time left; a line for each trial that ended."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.deadline, self.best = math.inf, ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[left]}"),
            console=err,
            disable=quiet or not err.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task(title, note="", left="")

    def trial(self, number: int, trials: int, deadline: float, best: tuple[float, int] | None) -> None:
        """A trial begins."""
        self.deadline = deadline
        self.best = "" if best is None else f"  best {best[0]:.5f} (trial {best[1]})"
        self.bar.reset(self.task, description=f"{self.title} trial {number} of {trials}", note=self.best, left="")
        self.bar.start()

    def start(self, rows: int, epochs: int, done: int) -> None:
        self.bar.update(self.task, total=rows * epochs, completed=done)

    def step(self, rows: int, loss: float, epoch: int) -> None:
        left = self.deadline - time.monotonic()
        text = "" if math.isinf(left) else f" {timedelta(seconds=max(0, round(left)))} left"
        self.bar.update(self.task, advance=rows, left=text)

    def evaluated(self, record: dict[str, Any]) -> None:
        self.bar.update(self.task, note=f"valid {record['log_loss']:.5f}{self.best}")

    def say(self, text: str) -> None:
        if not self.quiet:
            err.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> TuningBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


@contextmanager
def counting(title: str, quiet: bool = False) -> Iterator[Any]:
    """A spinner with the step and a count of rows; yields the function that moves it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal, transient=True) as bar:
        task = bar.add_task(title)
        yield lambda step, count: bar.update(task, description=f"{title}: {step}", completed=count)
