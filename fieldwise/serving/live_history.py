"""A history in service: keys and times from the values of a request, waiting events, new events.

data/history does the counting; here is only what makes it fast for few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.history.counts import Floats, Keys
from fieldwise.data.history.history import History, known_moment, moment, spelt, text_hashes
from fieldwise.data.kinds.kind import BY_BUCKET, Coder

Column = Callable[[str], Sequence[Any]]
# Above this many comparisons with waiting events, it is cheaper to copy the history and count them in the copy.
MOST_COMPARISONS = 5_000_000


class LiveHistory:
    """The history of an encoder. Not thread-safe: its owner locks."""

    def __init__(self, encoder: Encoder, history: History) -> None:
        self.history, self.settings = history, history.settings
        used = [code for code in encoder.codes if code.field.name in self.settings.columns]
        self.buckets: dict[str, Coder] = {
            code.field.name: code.in_buckets.coder() for code in used if code.field.history_key == BY_BUCKET
        }

    def ids(self, column: Column, rows: int) -> NDArray[np.int32]:
        """The id columns (n, H * width) of all history fields."""
        keys, times = self.keys(column), self.times(column, rows, known_moment)
        return self.history.ids(self.history.ids_of_counts(self._counted(keys, times)))

    def keys(self, column: Column) -> Keys:
        """Like History.keys: a number is keyed by its bucket, everything else by its text."""
        hashes = {}
        for name in self.settings.columns:
            if name in self.buckets:
                hashes[name] = np.array(self.buckets[name](column(name))[0], dtype=np.uint64)
            else:
                hashes[name] = text_hashes(map(spelt, column(name)))
        return self.history.mixed_keys(hashes)

    def times(self, column: Column, rows: int, read: Callable[[Any, str], float | None] = moment) -> Floats:
        """The times of rows; a row without one comes just after everything counted so far."""
        clock = self.settings.clock
        given = np.array([read(value, clock) for value in column(clock)], dtype=np.float64) if clock else None
        return self.history.times(given, rows)

    def add(self, column: Column, label: float, time: float | None) -> None:
        """Counts an event. One that arrives late counts from the last time counted so far."""
        keys = self.keys(column)
        if not self.settings.time:
            self.history.counts.add(keys, np.array([label]))
            return
        when = float(self.times(column, 1)[0]) if time is None else time
        if not math.isfinite(when):
            raise DataError(f"an event's time must be a finite number, found {when}")
        self.history.replay(keys, np.array([label]), np.array([max(when, self.history.end)]))

    def _counted(self, keys: Keys, times: Floats) -> Floats:
        """Like History.counted, but adds a few waiting events to the table's counts without copying the table."""
        history, waiting = self.history, self.history.waiting
        if not len(waiting.times):
            return history.counts.lookup(keys, times)
        if keys.size * len(waiting.times) > MOST_COMPARISONS:
            return history.counted(keys, times)
        window, delay = self.settings.window, self.settings.delay
        now = history.asked(times)
        came = (waiting.times < now[:, None]) & (waiting.times <= now[:, None] - delay)
        inside = np.arange(len(waiting.times)) < history.added
        gone = (waiting.times < now[:, None] - window) & (came | inside) if window else np.zeros_like(came)
        change = (came & ~inside & ~gone).astype(np.float64) - (inside & gone)
        if self.settings.half_life:
            age = np.maximum(0.0, times[:, None] - waiting.times)
            change *= np.exp(-math.log(2) / self.settings.half_life * age)
        same = keys[:, None, :] == waiting.keys
        found = history.counts.lookup(keys, times)
        found[:, :, 0] += np.einsum("nw,nwk->nk", change, same)
        found[:, :, 1] += np.einsum("nw,nwk->nk", change * waiting.labels, same)
        return np.maximum(found, 0.0)
