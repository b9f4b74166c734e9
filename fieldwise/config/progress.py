"""What a run reports while it trains; apart from the runs, so that verbs that train nothing need not load torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Progress:
    """What the training loop reports; the command line draws a bar from it, the default does nothing."""

    def start(self, rows: int, epochs: int, done: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, rows: int, loss: float, epoch: int) -> None: ...

    def evaluated(self, record: dict[str, Any]) -> None: ...


class Watch(Progress):
    """What many runs report; with one run at a time, also its own progress."""

    def moved(self, running: Sequence[str], done: int, total: int, left: float | None) -> None:
        """Which runs are under way, how many are done, and the seconds left, as far as that is known."""

    def making(self, step: str, rows: int) -> None:
        """How far a folder is that runs will read: the step, and how many rows it has done."""
