"""Where a run stands, and what is due after a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

from fieldwise.config.settings import TrainSettings

# How often the loss is logged and shown in an epoch.
LOGS_PER_EPOCH = 10


@dataclass
class State:
    """What a run knows of itself beside its weights; a step of trees is a round. Checkpoints keep it as JSON."""

    step: int = 0
    best_loss: float = math.inf  # the least validation log loss so far
    best_step: int = 0
    bad: int = 0  # evaluations since the best one
    last_loss: float = math.inf  # of the newest evaluation
    fall: float = math.inf  # of the loss, from the evaluation before to the newest
    seconds: float = 0.0  # spent in training steps
    log_bytes: int = 0  # length of log.jsonl
    stopped: bool = False  # whether patience ran out
    losses: list[float] = field(default_factory=list)  # of the steps since the last line of the log

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        """The state that a checkpoint holds; what an older checkpoint lacks has its default."""
        return cls(**{one.name: saved[one.name] for one in fields(cls) if one.name in saved})

    def to_json(self) -> dict[str, Any]:
        """The form that `of` reads."""
        return asdict(self)

    def take_best(self, loss: float) -> bool:
        """Records the validation log loss after the current step; returns whether it is the best so far."""
        better = loss < self.best_loss
        self.fall, self.last_loss = self.last_loss - loss, loss
        if better:
            self.best_loss, self.best_step = loss, self.step
        self.bad = 0 if better else self.bad + 1
        return better


class Due(NamedTuple):
    """What follows a step. A checkpoint follows every evaluation."""

    log: bool
    evaluate: bool
    save: bool


class Plan:
    """Says what is due after each step. An epoch of `steps` steps ends with a line of the log, an evaluation and a
    checkpoint; there are more of the first two within it, and a checkpoint some minutes after the last.

    `agree` makes one answer of the workers' answers, where all of them must save at the same step.
    """

    def __init__(self, settings: TrainSettings, steps: int, agree: Callable[[bool], bool] = bool) -> None:
        self.steps, self.agree = steps, agree
        self.log_every = max(1, steps // LOGS_PER_EPOCH)
        self.evaluate_every = max(1, steps // settings.evaluations)
        self.save_after = 60 * settings.checkpoint_minutes
        self.saved()

    def saved(self) -> None:
        """A checkpoint was written just now."""
        self.saved_at = time.monotonic()

    def after(self, step: int, last: bool = False) -> Due:
        """What is due after that step; 1 is the first. The `last` one is evaluated."""
        within = (step - 1) % self.steps + 1
        ends = within == self.steps
        log = ends or within % self.log_every == 0
        # The last evaluation within an epoch leaves a whole interval before the one that ends it.
        evaluate = last or ends or (within % self.evaluate_every == 0 and within + self.evaluate_every <= self.steps)
        return Due(log, evaluate, evaluate or self.agree(self._late()))

    def _late(self) -> bool:
        return time.monotonic() - self.saved_at > self.save_after


class Stopwatch:
    """Measures how long each part of a run takes. One part goes on at a time, so the parts add up to the whole.

    >>> watch = Stopwatch("setup")
    >>> with watch.during("evaluations"):
    ...     pass
    >>> sorted(watch.seconds)
    ['evaluations', 'setup']
    """

    def __init__(self, part: str) -> None:
        self.seconds: dict[str, float] = {}
        self.part, self.began = part, time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap, or since this part began."""
        now = time.monotonic()
        seconds, self.began = now - self.began, now
        self.seconds[self.part] = self.seconds.get(self.part, 0.0) + seconds
        return seconds

    def go_on(self, part: str) -> None:
        """Ends this part and begins another, or goes on with it."""
        self.lap()
        self.part = part

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """A part within this one, which stands still meanwhile."""
        before = self.part
        self.go_on(part)
        try:
            yield
        finally:
            self.go_on(before)
