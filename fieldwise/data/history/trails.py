"""What keys had in earlier rows, in bounded memory: for each 64-bit key its newest events, with some columns' ids.

Events lie one behind the other in numpy arrays, each with pointers to the one before it and the one after it of the
same key; compiled loops follow them. Where there is no more room, events that no later row can see are dropped; and
where these leave less than a quarter of `most` free, the keys that were idle longest, until half of it is free. What is
dropped depends on the order of the events alone, not on how they were cut into chunks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.history.counts import Floats, Keys
from fieldwise.data.kinds.kind import MISSING, OTHER, PAD, Ids

SMALLEST = 1024


class Seen(NamedTuple):
    """What rows see: ids (n, C, N), the newest first, unused places -1, MISSING alone for none; and ages (n, N)."""

    ids: Ids
    ages: Floats


class Trail:
    """The events of all keys, with `columns` ids each; a row sees `last` of them, by `delay` and `window`."""

    def __init__(self, columns: int, last: int, delay: float = 0.0, window: float = 0.0, most: int = 1 << 26) -> None:
        self.columns, self.last, self.delay, self.window, self.most = columns, last, delay, window, most
        self.end = -math.inf
        self._allocate_keys(SMALLEST)
        self._allocate_events(SMALLEST)

    def _allocate_keys(self, places: int) -> None:
        self.keys = np.zeros(places, dtype=np.uint64)
        self.heads, self.waiting = (np.full(places, -1, dtype=np.int64) for _ in range(2))
        self.used = 0

    def _allocate_events(self, room: int) -> None:
        self.ids = np.empty((room, self.columns), dtype=np.int32)
        self.times = np.empty(room)
        self.before, self.later = (np.full(room, -1, dtype=np.int64) for _ in range(2))
        self.events = 0

    @property
    def _table(self) -> tuple[Any, ...]:
        return self.keys, self.heads, self.waiting, self.ids, self.times, self.before, self.later

    @property
    def after(self) -> float:
        """The first moment at which all events are seen."""
        return float(np.nextafter(self.end + self.delay, np.inf))

    def lookup(self, keys: Keys, times: Floats) -> Seen:
        """What rows see that come after all events: keys (n,), and their moments (n,), the end at least."""
        found = self._none(len(keys))
        now = np.maximum(times, self.end)
        _loops()["lookup"](*self._table, keys, now, self.delay, self.window, *found)
        return found

    def replay(self, keys: Keys, ids: Ids, counts: NDArray[np.bool_], times: Floats) -> Seen:
        """Rows in the order of time, from the end on: what each sees; those that count are events for later ones."""
        found, done = self._none(len(keys)), 0
        rows = [np.ascontiguousarray(each) for each in (keys, ids, counts, times)]
        while done < len(keys):
            self._make_room()
            limit = len(self.keys) * 5 // 8
            done, self.used, self.events = _loops()["replay"](
                *self._table, self.used, limit, self.events, *rows, self.delay, self.window, done, *found
            )
            # For what is dropped next: everything before the row that comes now.
            self.end = float(times[min(done, len(times) - 1)])
        return found

    def forget(self, column: int, ids: Sequence[int] | Ids) -> None:
        """What has some ids in a column has `other` from now on."""
        own = self.ids[: self.events, column]
        own[np.isin(own, ids)] = OTHER

    def _none(self, rows: int) -> Seen:
        ids = np.full((rows, self.columns, self.last), PAD, dtype=np.int32)
        ids[:, :, 0] = MISSING
        return Seen(ids, np.zeros((rows, self.last)))

    def _make_room(self) -> None:
        """Makes room for a key and an event at least."""
        if self.used + 1 > len(self.keys) * 5 // 8:
            self._place(2 * len(self.keys))
        if self.events + 1 > len(self.times):
            self._compact()

    def _place(self, places: int) -> None:
        there = self.keys != 0
        old = self.keys[there], self.heads[there], self.waiting[there]
        self._allocate_keys(places)
        self.used = _loops()["place"](self.keys, self.heads, self.waiting, *old)

    def _compact(self) -> None:
        """Drops events that no later row can see; then there is room for as many more, or what `most` leaves."""
        state = self.state()
        room = SMALLEST
        while room < 2 * len(state["times"]):
            room *= 2
        if room > self.most:
            # A quarter of the room at least is free, or each few rows would be followed by this.
            state = state if 4 * len(state["times"]) <= 3 * self.most else _busiest(state, self.most // 2)
            room = self.most
        self._restore(state, room)

    def state(self) -> dict[str, NDArray[Any]]:
        """The keys in rising order, how many events each has, and these, the newest first: equal for equal trails."""
        kept = np.zeros(self.events, dtype=np.bool_)
        settings = (self.delay, self.window, self.last)
        _loops()["needed"](self.keys, self.heads, self.times, self.before, self.end, *settings, kept)
        # An event that is not needed has none behind it that is.
        before = np.where(self.before[: self.events] >= 0, self.before[: self.events], self.events)
        before = np.where(np.append(kept, False)[before], self.before[: self.events], -1)
        there = np.flatnonzero(self.keys)
        there = there[kept[self.heads[there]]]
        there = there[np.argsort(self.keys[there])]
        counts, order = np.zeros(len(there), dtype=np.int64), np.empty(int(kept.sum()), dtype=np.int64)
        _loops()["listed"](self.heads[there], before, counts, order)
        return {"keys": self.keys[there], "counts": counts, "ids": self.ids[order], "times": self.times[order]}

    def load(self, state: Mapping[str, NDArray[Any]], end: float, sizes: Sequence[int]) -> None:
        """Takes what `state` gave; refuses what the loops or a model would read beyond its ends."""
        _check(state, end, sizes)
        self.end = end
        self._restore(state, SMALLEST)

    def _restore(self, state: Mapping[str, NDArray[Any]], room: int) -> None:
        keys, counts, count = state["keys"], state["counts"], len(state["times"])
        while room <= count:
            room *= 2
        ends = np.cumsum(counts)
        starts = ends - counts
        self._allocate_events(room)
        self.events = count
        self.ids[:count], self.times[:count] = state["ids"], state["times"]
        self.before[:count] = np.arange(1, count + 1)
        self.before[ends - 1] = -1
        self.later[:count] = np.arange(-1, count - 1)
        self.later[starts] = -1
        # The newest events of a key, in front, may not be seen yet: the last of these is the oldest that waits.
        waits = ~((self.times[:count] < self.end) & (self.times[:count] <= self.end - self.delay))
        total = np.append(0, np.cumsum(waits))
        waiting = total[ends] - total[starts]
        waiting = np.where(waiting > 0, starts + waiting - 1, -1)
        places = SMALLEST
        while len(keys) * 2 > places:
            places *= 2
        self._allocate_keys(places)
        self.used = _loops()["place"](self.keys, self.heads, self.waiting, keys, starts, waiting)


def _busiest(state: Mapping[str, NDArray[Any]], most: int) -> dict[str, NDArray[Any]]:
    """The state of the keys with the latest events, as many as have `most` events together."""
    starts = np.cumsum(state["counts"]) - state["counts"]
    # Keys of one moment by their number, so that the order is always the same.
    order = np.lexsort((state["keys"], -state["times"][starts]))
    kept = np.zeros(len(order), dtype=bool)
    kept[order[: np.searchsorted(np.cumsum(state["counts"][order]), most, side="right")]] = True
    events = np.repeat(kept, state["counts"])
    both = {name: state[name][kept] for name in ("keys", "counts")}
    return both | {name: state[name][events] for name in ("ids", "times")}


def _check(state: Mapping[str, NDArray[Any]], end: float, sizes: Sequence[int]) -> None:
    keys, counts, ids, times = (state[name] for name in ("keys", "counts", "ids", "times"))
    if [part.dtype.name for part in (keys, counts, ids, times)] != ["uint64", "int64", "int32", "float64"]:
        raise ValueError("a sequence has keys of uint64, counts of int64, ids of int32 and times of float64")
    if keys.ndim != 1 or counts.shape != keys.shape or times.ndim != 1 or ids.shape != (len(times), len(sizes)):
        raise ValueError(f"a sequence has a count for each key, and a time and {len(sizes)} ids for each event")
    if (keys[1:] <= keys[:-1]).any() or not keys.all() or (counts < 1).any() or counts.sum() != len(times):
        raise ValueError("the keys of a sequence rise, none of them is 0, and all of their events are there")
    if not (np.isfinite(times).all() and end < math.inf) or times.max(initial=end) > end:
        raise ValueError("the times of a sequence are finite, and none of them comes after its end")
    if (ids < 0).any() or (ids >= np.array(sizes)).any():
        raise ValueError("a sequence has ids that its field does not have")
    falls = np.diff(times) > 0
    falls[np.cumsum(counts)[:-1] - 1] = False
    if falls.any():
        raise ValueError("the events of a key lie the newest first")


@cache
def _loops() -> dict[str, Any]:
    """The compiled loops; numba is imported when they are first needed."""
    from fieldwise.data.history import trail_loops

    names = ("lookup", "replay", "needed", "place", "listed")
    return {name: getattr(trail_loops, name) for name in names}
