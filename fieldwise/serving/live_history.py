"""Histories and sequences in service: keys and times from the values of a request, waiting events, new events.

data/history does the counting; here is only what makes it fast for few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.history.counts import Floats, Keys
from fieldwise.data.history.history import History, known_moment, moment, spelt, text_hashes
from fieldwise.data.history.sequences import Past
from fieldwise.data.kinds.kind import BY_BUCKET, Coder

Column = Callable[[str], Sequence[Any]]
# Above this many comparisons with waiting events, it is cheaper to copy the history and count them in the copy.
MOST_COMPARISONS = 5_000_000


def bucket_coders(encoder: Encoder, names: Collection[str]) -> dict[str, Coder]:
    """The coders of the columns among these that count by the bucket of a number."""
    used = [code for code in encoder.codes if code.field.name in names and code.field.history_key == BY_BUCKET]
    return {code.field.name: code.in_buckets.coder() for code in used}


def hashes_of(column: Column, names: Sequence[str], buckets: Mapping[str, Coder]) -> dict[str, NDArray[np.uint64]]:
    """What columns hold as hashes, like the function of that name in data/history."""
    return {
        name: np.array(buckets[name](column(name))[0], dtype=np.uint64)
        if name in buckets
        else text_hashes(map(spelt, column(name)))
        for name in names
    }


def given_moments(column: Column, clock: str, read: Callable[[Any, str], float | None]) -> Floats | None:
    """The times that rows have, NaN where there is none; None without a clock."""
    return np.array([read(value, clock) for value in column(clock)], dtype=np.float64) if clock else None


def finite(when: float) -> float:
    """An event's time; refused if it is no finite number."""
    if not math.isfinite(when):
        raise DataError(f"an event's time must be a finite number, found {when}")
    return when


class LivePast:
    """A sequence of an encoder. Not thread-safe: its owner locks."""

    def __init__(self, encoder: Encoder, past: Past) -> None:
        self.past, self.trail, self.settings = past, past.trail, past.settings
        self.buckets = bucket_coders(encoder, self.settings.columns_needed)
        self.owners = [(code.owner.field.column, code.owner.coder()) for code in past.codes]

    def ids(self, column: Column, rows: int) -> dict[str, NDArray[np.int32]]:
        """The ids (n, N) of each of its fields."""
        given = given_moments(column, self.settings.clock, known_moment)
        return self.past.by_name(self.past.ids(self.trail.lookup(self._keys(column), self.past.times(given, rows))))

    def add(self, column: Column, label: float, time: float | None) -> None:
        """Counts an event. One that arrives late counts from the last time counted so far."""
        given = given_moments(column, self.settings.clock, moment)
        when = finite(float(self.past.times(given, 1)[0]) if time is None else time)
        # Nothing was counted yet, and the order is the time: it begins.
        when = when if abs(when) < 1e300 else 0.0
        ids = np.array([coder(column(name))[0] for name, coder in self.owners], dtype=np.int32).reshape(-1, 1).T
        self.past.replay(self._keys(column), ids, np.array([label]), np.array([max(when, self.trail.end)]))

    def _keys(self, column: Column) -> Keys:
        return self.past.keys(hashes_of(column, self.settings.columns_needed, self.buckets))


class LiveHistory:
    """The history of an encoder. Not thread-safe: its owner locks."""

    def __init__(self, encoder: Encoder, history: History) -> None:
        self.history, self.settings = history, history.settings
        self.buckets = bucket_coders(encoder, self.settings.columns)

    def ids(self, column: Column, rows: int) -> NDArray[np.int32]:
        """The id columns (n, H * width) of all history fields."""
        keys, times = self.keys(column), self.times(column, rows, known_moment)
        return self.history.ids(self.history.ids_of_counts(self._counted(keys, times)))

    def keys(self, column: Column) -> Keys:
        """Like History.keys: a number is keyed by its bucket, everything else by its text."""
        return self.history.mixed_keys(hashes_of(column, self.settings.columns, self.buckets))

    def times(self, column: Column, rows: int, read: Callable[[Any, str], float | None] = moment) -> Floats:
        """The times of rows; a row without one comes just after everything counted so far."""
        return self.history.times(given_moments(column, self.settings.clock, read), rows)

    def add(self, column: Column, label: float, time: float | None) -> None:
        """Counts an event. One that arrives late counts from the last time counted so far."""
        keys = self.keys(column)
        if not self.settings.time:
            self.history.counts.add(keys, np.array([label]))
            return
        when = finite(float(self.times(column, 1)[0]) if time is None else time)
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
