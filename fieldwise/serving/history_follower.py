"""Histories that follow the event log: each counted response, once, in the log's order.

Every process holds its own state and reads the same log, so that all of them pass through the same states. What a
process has acknowledged itself it has counted; what another one has acknowledged it counts at its next look.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from fieldwise.abtest.event_log import EventLog, Outcome
from fieldwise.data.history.history import moment
from fieldwise.serving.engine import Engine

# Impressions may be written a little later than they were shown.
SLACK = 60.0


class Follower:
    """An engine's place in the log.

    A bundle whose history has a time column counts the responses to rows that are later than its training rows. One
    without counts what came after it was first served with this log, and takes what came before for trained on.
    """

    def __init__(self, engine: Engine, model: str, log: EventLog) -> None:
        self.engine, self.log = engine, log
        self.clock = clock_of(engine)
        self._start = log.start_of(model)
        self.seq = 0 if self.clock else self._start
        self._columns = frozenset(engine.columns)
        self._lock = threading.Lock()

    def catch_up(self) -> int:
        """Reads all that the log has gained; returns how many responses that were."""
        read = 0
        with self._lock:
            while found := self.log.outcomes(self.seq):
                for outcome in found:
                    self._count(outcome)
                    self.seq = outcome.seq
                read += len(found)
        return read

    def _count(self, outcome: Outcome) -> None:
        row = {name: value for name, value in outcome.row.items() if name in self._columns}
        try:
            if self._is_new(outcome.seq, row):
                self.engine.history_event(row, outcome.label)
        except Exception as error:
            # It will fail in every process and at every start; the log must not stop for it.
            reason = (str(error) or type(error).__name__).splitlines()[0]
            print(f"event {outcome.seq} is in no history: {reason}", file=sys.stderr, flush=True)

    def _is_new(self, seq: int, row: dict[str, Any]) -> bool:
        """Whether a response is none of those that the bundle was trained on."""
        found = moment(self.engine.value(row, self.clock[0]), self.clock[0]) if self.clock else None
        return seq > self._start if self.clock is None or found is None else found > self.clock[1]


def clock_of(engine: Engine) -> tuple[str, float] | None:
    """The time column of an engine's histories, and the moment that they had come to when they were saved."""
    histories = [coder.past.history for coder in engine.coders if coder.past]
    clocks = {history.settings.clock for history in histories}
    if len(clocks) != 1 or "" in clocks:
        return None
    return clocks.pop(), max(history.end for history in histories)


class Closer:
    """Gives rows without a response after `wait` seconds a response of 0; one process of a log does it."""

    def __init__(self, log: EventLog, wait: float) -> None:
        self.log, self.wait, self.done = log, wait, 0.0

    def close(self) -> None:
        before = time.time() - self.wait
        after = self.done
        while after < before:
            after = self.log.close_unanswered(after, before)
            # Rows of one moment may be more than one step takes; it goes over them once more, which changes nothing.
        self.done = max(0.0, before - SLACK)
