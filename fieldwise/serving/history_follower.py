"""Histories that follow the event log: each response is counted once, in the log's order.

Every process keeps its own counts and reads the same log, so all of them go through the same states. A process counts
the responses it acknowledges itself at once, and those of other processes when it next reads the log.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from fieldwise.abtest.event_log import EventLog, Outcome
from fieldwise.data.history.history import moment
from fieldwise.serving.engine import Engine

# Impressions may be logged a little later than they were shown.
SLACK = 60.0


class Follower:
    """An engine's position in the log.

    A bundle whose history has a time column counts the responses to rows later than its training rows. Without one it
    counts the responses logged after it was first served with this log: it may have been trained on earlier ones.
    """

    def __init__(self, engine: Engine, model: str, log: EventLog) -> None:
        self.engine, self.log = engine, log
        self.clock = clock_of(engine)
        self._start = log.start_of(model)
        self.seq = 0 if self.clock else self._start
        self._columns = frozenset(engine.columns)
        self._lock = threading.Lock()

    def catch_up(self) -> int:
        """Reads the log's new responses and returns how many there were."""
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
            # It fails in every process and at every start; the responses after it must be counted all the same.
            reason = (str(error) or type(error).__name__).splitlines()[0]
            print(f"event {outcome.seq} was not counted in the history: {reason}", file=sys.stderr, flush=True)

    def _is_new(self, seq: int, row: dict[str, Any]) -> bool:
        """Whether the bundle was not trained on this response."""
        found = moment(self.engine.value(row, self.clock[0]), self.clock[0]) if self.clock else None
        return seq > self._start if self.clock is None or found is None else found > self.clock[1]


def clock_of(engine: Engine) -> tuple[str, float] | None:
    """The time column of an engine's histories, and the last time they had counted when they were saved."""
    histories = [coder.live_history.history for coder in engine.coders if coder.live_history]
    ends = [(history.settings.clock, history.end) for history in histories]
    ends += [(live.settings.clock, live.trail.end) for coder in engine.coders for live in coder.live_pasts]
    clocks = {clock for clock, _ in ends}
    if len(clocks) != 1 or "" in clocks:
        return None
    return clocks.pop(), max(end for _, end in ends)


class Closer:
    """Logs a response of 0 for rows without one after `wait` seconds; only one process of a log may do so."""

    def __init__(self, log: EventLog, wait: float) -> None:
        self.log, self.wait, self.done = log, wait, 0.0

    def close(self) -> None:
        before = time.time() - self.wait
        after = self.done
        while after < before:
            after = self.log.close_unanswered(after, before)
            # One step may not cover all rows of one time; the next repeats some of them, which changes nothing.
        self.done = max(0.0, before - SLACK)
