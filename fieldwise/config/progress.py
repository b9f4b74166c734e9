"""What a run reports while it trains; separate from the runs, so commands that do not train need not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Progress:
    """Receives what the training loop reports; the command line draws a bar, the default does nothing."""

    def start(self, rows: int, epochs: int, done: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, rows: int, loss: float, epoch: int) -> None: ...

    def evaluated(self, record: dict[str, Any]) -> None: ...


class Watch(Progress):
    """Receives what many runs report; if they run one at a time, also the progress of each."""

    def moved(self, running: Sequence[str], done: int, total: int, left: float | None) -> None:
        """Which runs are in progress, how many are done, and the estimated seconds left, if known."""

    def making(self, step: str, rows: int) -> None:
        """The progress of a folder that runs will read: the step, and the rows it has done."""
