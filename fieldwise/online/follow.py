"""Histories that follow the event log: each counted response, once, in the log's order.

Every process holds its own state and reads the same log, so that all of them pass through the same states. What a
process has acknowledged itself it has counted; what another one has acknowledged it counts at its next look.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol

from fieldwise.online.log import EventLog, Outcome

# Impressions may be written a little later than they were shown.
SLACK = 60.0


class Counting(Protocol):
    """What follows the log of an engine."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def has_history(self) -> bool: ...

    def history_event(self, row: Any, label: int, time: float | None = None) -> None: ...


class Follower:
    """An engine's place in the log."""

    def __init__(self, engine: Counting, model: str, log: EventLog) -> None:
        self.engine, self.log = engine, log
        self.seq = log.start_of(model)
        self._columns = frozenset(engine.columns)
        self._lock = threading.Lock()

    def catch_up(self) -> int:
        """Counts all that the log has gained; returns how many responses that were."""
        counted = 0
        with self._lock:
            while found := self.log.outcomes(self.seq):
                for outcome in found:
                    self._count(outcome)
                    self.seq = outcome.seq
                counted += len(found)
        return counted

    def _count(self, outcome: Outcome) -> None:
        row = {name: value for name, value in outcome.row.items() if name in self._columns}
        try:
            self.engine.history_event(row, outcome.label)
        except Exception as error:
            # It will fail in every process and at every start; the log must not stop for it.
            reason = (str(error) or type(error).__name__).splitlines()[0]
            print(f"event {outcome.seq} is in no history: {reason}", file=sys.stderr, flush=True)


class Closer:
    """Gives rows that nobody responded to within `wait` seconds a response of 0; one process of a log does it."""

    def __init__(self, log: EventLog, wait: float) -> None:
        self.log, self.wait, self.done = log, wait, 0.0

    def close(self) -> None:
        before = time.time() - self.wait
        after = self.done
        while after < before:
            after = self.log.close_unanswered(after, before)
            # Rows of one moment may be more than one step takes; it goes over them once more, which changes nothing.
        self.done = max(0.0, before - SLACK)
