"""Counts of keys in bounded memory: how many rows, and how many positives, each 64-bit key has had.

An open-addressing table in numpy arrays, filled by compiled loops. Where there would be more keys than `most`, the keys
with the smallest counts are dropped until half of the places are free, and `error` grows by the largest count dropped:
a key's true count lies between what the table says and that plus `error`. What is dropped depends on the order of the
events alone, not on how they were cut into chunks.
"""

from __future__ import annotations

import math
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]
SMALLEST = 1024
# Up to this many keys are found in what was loaded before the compiled loops would be.
FEW = 1 << 16
# The first of several threads to look something up places what was loaded.
PLACING = threading.Lock()


class Counts:
    """The table. With a half-life, a count halves each time that so much time passes."""

    def __init__(self, most: int = 1 << 26, half_life: float = 0.0) -> None:
        self.most, self.half_life, self.error = most, half_life, 0.0
        self.loaded: tuple[Keys, Floats, Floats] | None = None  # in rising order, until they are placed
        self._allocate(SMALLEST)

    def _allocate(self, places: int) -> None:
        self.keys = np.zeros(places, dtype=np.uint64)
        self.values = np.zeros((places, 2))
        self.last = np.zeros(places)
        self.used = 0

    @property
    def _decay(self) -> float:
        return math.log(2) / self.half_life if self.half_life else 0.0

    def add(self, keys: Keys, labels: NDArray[Any], times: Floats | None = None, weight: float = 1.0) -> None:
        """Counts events: keys (n, K), each with the row's label (n,); a weight of -1 takes them back."""
        self._place()
        labels = np.ascontiguousarray(labels, dtype=np.float64)
        times = np.zeros(len(keys)) if times is None else times
        done = 0
        while done < len(keys):
            self._make_room(keys.shape[1])
            done, self.used = _kernels()["add"](*self._table, keys, labels, times, self._decay, weight, done)

    def lookup(self, keys: Keys, times: Floats | None = None) -> Floats:
        """Counts and positives of keys (n, K) -> (n, K, 2), as of the rows' times."""
        loaded = self.loaded
        if loaded is not None and keys.size <= FEW and not self.half_life:
            return _found(keys, *loaded[:2])
        self._place()
        found = np.zeros((*keys.shape, 2))
        times = np.zeros(len(keys)) if times is None else times
        _kernels()["lookup"](*self._table[:3], keys, times, self._decay, found)
        return found

    def stream(self, events: Events, first: int, added: int, expired: int, settings: Floats, found: Floats) -> Any:
        """Rows in the order of time, from `first` on: what each sees, and what comes in and falls out meanwhile.

        `settings` are delay and window. Returns how far it came: the rows looked up, added and expired.
        """
        self._place()
        while first < len(events.times):
            self._make_room(events.keys.shape[1])
            first, added, expired, self.used = _kernels()["stream"](
                *self._table,
                events.keys,
                events.labels,
                events.times,
                self._decay,
                *settings,
                first,
                added,
                expired,
                found,
            )
        return added, expired

    @property
    def _table(self) -> tuple[Any, ...]:
        return self.keys, self.values, self.last, self.used, min(self.most, len(self.keys) * 5 // 8)

    def _make_room(self, needed: int) -> None:
        """Makes room for `needed` new keys."""
        if self.used + needed <= min(self.most, len(self.keys) * 5 // 8):
            return
        keep = self.keys != 0
        if self.used + needed > self.most:
            now = self.last[keep].max(initial=0.0)
            counts = self.values[:, 0] * np.exp(-self._decay * (now - self.last))
            least = np.sort(counts[keep])[self.used // 2]
            keep &= counts > least
            self.error += float(least)
        old = self.keys[keep], self.values[keep], self.last[keep]
        places = len(self.keys)
        while (len(old[0]) + needed) * 2 > places:
            places *= 2
        self._allocate(places)
        self.used = _kernels()["place"](self.keys, self.values, self.last, *old)

    def state(self) -> dict[str, NDArray[Any]]:
        """The keys in rising order with their values, which says all: equal tables have equal states."""
        self._place()
        keep = self.keys != 0
        order = np.argsort(self.keys[keep])
        return {name: getattr(self, name)[keep][order] for name in ("keys", "values", "last")}

    def copy(self) -> Counts:
        self._place()
        other = Counts(self.most, self.half_life)
        other.keys, other.values, other.last = self.keys.copy(), self.values.copy(), self.last.copy()
        other.used, other.error = self.used, self.error
        return other

    def save(self, path: Path, **more: NDArray[Any]) -> None:
        """Writes an .npz file, with further arrays if there are any; compressed: every bundle has one."""
        np.savez_compressed(path, **self.state(), error=np.float64(self.error), **more)  # type: ignore[arg-type]

    def load(self, path: Path) -> dict[str, NDArray[Any]]:
        """Reads what `save` wrote; returns all of its arrays."""
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        keys, values, last = (arrays[name] for name in ("keys", "values", "last"))
        self.error = float(arrays["error"])
        _check(keys, values, last, self.error)
        self.loaded = keys, values, last
        return arrays

    def _place(self) -> None:
        """Places what was loaded in the table: many keys are found faster there, and new ones can come."""
        if self.loaded is not None:
            with PLACING:
                self._place_loaded()

    def _place_loaded(self) -> None:
        if self.loaded is None:
            return  # by the thread that came first
        keys, values, last = self.loaded
        places = SMALLEST
        while len(keys) * 2 > places:
            places *= 2
        self._allocate(places)
        self.used = _kernels()["place"](self.keys, self.values, self.last, keys, values, last)
        # Only now: other threads take this for the sign that the table is whole.
        self.loaded = None


def _found(keys: Keys, known: Keys, values: Floats) -> Floats:
    """The values (M, 2) of keys (n, K) among known ones (M,) in rising order -> (n, K, 2); 0 for others."""
    if not len(known):
        return np.zeros((*keys.shape, 2))
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where((known[places] == keys)[..., None], values[places], 0.0)


def _check(keys: NDArray[Any], values: NDArray[Any], last: NDArray[Any], error: float) -> None:
    """Refuses a table that the compiled loops would read beyond its ends, or that holds no counts."""
    rows = len(keys)
    if keys.shape != (rows,) or values.shape != (rows, 2) or last.shape != (rows,):
        raise ValueError(f"a table has two counts and a time for each of its {rows:,} keys")
    if [part.dtype.name for part in (keys, values, last)] != ["uint64", "float64", "float64"]:
        raise ValueError("keys are uint64, counts and times float64")
    if not keys.all() or (keys[1:] <= keys[:-1]).any():
        raise ValueError("keys rise, and none of them is 0")
    if (
        not np.isfinite([error, *(part.sum() for part in (values, last))]).all()
        or min(error, values.min(initial=0)) < 0
    ):
        raise ValueError("counts are finite numbers of 0 or more")


class Events:
    """Rows that count: keys (n, K), labels (n,), times (n,), in the order of time."""

    def __init__(self, keys: Keys, labels: NDArray[Any], times: Floats) -> None:
        self.keys = np.ascontiguousarray(keys)
        self.labels = np.ascontiguousarray(labels, dtype=np.float64)
        self.times = np.ascontiguousarray(times, dtype=np.float64)


@cache
def _kernels() -> dict[str, Any]:
    """The compiled loops; numba is imported when they are first needed."""
    from fieldwise.data.history import count_loops

    return {name: getattr(count_loops, name) for name in ("add", "lookup", "stream", "place")}
