"""How often values without an id were seen, over all folders of a chain, in bounded memory.

A value is known by 64 bits of its field and its text. Up to `most` of them are counted exactly; where there are more,
those that were seen least are dropped, of these the ones that were seen longest ago, and `error` grows by the largest
count that was dropped: a value was seen at most so many times more often than its count says. So a value may have to
wait longer for its id, but none gets one too early. (A count-min sketch errs the other way: in years it fills up, and
everything that comes would be admitted.) What stays does not depend on the order of a folder's values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.history.counts import Keys

MOST = 1 << 20
LARGEST = 2**31 - 1
Numbers = NDArray[np.int32]


class _Counts(NamedTuple):
    """Keys (n,), how often each was seen, and in which folder last."""

    keys: Keys
    counts: Numbers
    last: Numbers

    def only(self, these: NDArray[Any]) -> _Counts:
        return _Counts(*(part[these] for part in self))


class Sightings:
    """The counts as the folders before left them, with rising keys, and what the folder of now adds to them."""

    def __init__(self, most: int = MOST) -> None:
        self.most, self.error = most, 0
        self.held = _none()
        self.new: list[_Counts] = []
        self.waiting, self.dropped = 0, 0

    def add(self, keys: Keys, counts: NDArray[np.int64], least: int, folder: int) -> NDArray[np.int64]:
        """Counts values (n,), each of which comes once in a folder; returns how often each was seen so far.

        Those that were seen `least` times are counted no longer: they get an id.
        """
        held = self.held
        places = np.minimum(np.searchsorted(held.keys, keys), max(0, len(held.keys) - 1))
        known = held.keys[places] == keys if len(held.keys) else np.zeros(len(keys), dtype=np.bool_)
        totals = counts.copy()
        totals[known] += held.counts[places[known]]
        held.counts[places[known]] = np.where(totals < least, np.minimum(totals, LARGEST), 0)[known]
        held.last[places[known]] = folder
        fresh = ~known & (totals < least)
        self.new.append(_Counts(keys[fresh], _int32(totals[fresh]), np.full(fresh.sum(), folder, dtype=np.int32)))
        self.waiting += int(fresh.sum())
        if self.waiting > 2 * self.most:
            self.new = [self._bounded(self._together(self.new))]
            self.waiting = len(self.new[0].keys)
        return totals

    def close(self, oldest: int) -> None:
        """Ends a folder: what was not seen since the folder `oldest` is forgotten, and what is too much is dropped."""
        every = self._together([self.held, *self.new])
        every = self._bounded(every.only((every.counts > 0) & (every.last >= oldest)))
        self.held, self.new = every.only(np.argsort(every.keys, kind="stable")), []
        self.error += self.dropped
        self.waiting, self.dropped = 0, 0

    def _bounded(self, every: _Counts) -> _Counts:
        if len(every.keys) <= self.most:
            return every
        # Those of one count and folder by their keys, so that it is always the same ones that stay.
        order = np.lexsort((every.keys, -every.last, -every.counts))
        self.dropped = max(self.dropped, int(every.counts[order[self.most]]))
        return every.only(order[: self.most])

    @staticmethod
    def _together(parts: list[_Counts]) -> _Counts:
        return _Counts(*map(np.concatenate, zip(*parts, strict=True)))

    def state(self) -> dict[str, NDArray[Any]]:
        """What is to be saved between folders: equal for equal counts."""
        return {**self.held._asdict(), "error": np.int64(self.error)}

    @classmethod
    def of(cls, state: Any) -> Sightings:
        """The counts from what `state` gave; ValueError if it is none. They are copied."""
        found = cls()
        found.held = _Counts(*(np.array(state[name]) for name in _Counts._fields))
        keys, *numbers = found.held
        kinds = [part.dtype.name for part in found.held]
        if kinds != ["uint64", "int32", "int32"] or any(part.shape != (len(keys),) for part in found.held):
            raise ValueError("sightings have a count and a folder for each of their keys")
        if (keys[1:] < keys[:-1]).any() or any((part < 0).any() for part in numbers):
            raise ValueError("the keys of sightings rise, and nothing is counted less than never")
        found.error = int(state["error"])
        return found


def _none() -> _Counts:
    return _Counts(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


def _int32(counts: NDArray[np.int64]) -> Numbers:
    return np.minimum(counts, LARGEST).astype(np.int32)
