"""The history of staged rows in the order of time, or in a random one, in shards of keys.

What a row sees of a key depends on the rows with that key alone. So each file writes its rows sorted by ranges of keys;
each range is replayed by itself, the rows of all files in their order; and each file gathers what its rows saw.
The overall rate is a key of its own that all rows have, and so one range.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.engine import Engine
from fieldwise.data.encode.history_shards import FOLDER, StagedFile, check_room, files_of, load_mapped, save_whole
from fieldwise.data.encode.stage import DROPPED
from fieldwise.data.encode.staged import LABEL, Progress, read_staged
from fieldwise.data.encode.timeline import other_file, own_past_file, past_file, row_moments, staged_columns
from fieldwise.data.history.counts import Counts, Events, Floats, Keys
from fieldwise.data.history.history import History, shuffled
from fieldwise.data.schema import HistorySettings

# Rows that are replayed together, about.
RANGE_ROWS = 4_000_000


def ordered_history(encoder: Encoder, stage: Path, rows: Mapping[str, int], progress: Progress, engine: Engine) -> None:
    """Counts the training parts in the encoder's history, and writes the fields of every part's files."""
    history, folder = encoder.history, stage / FOLDER
    assert history is not None
    folder.mkdir(exist_ok=True)
    files = files_of(stage, rows)
    log = _Log(folder, files, _ranges(sum(rows.values())), len(history.settings.keys))
    spans = _sorted(encoder.without_past, log, progress, engine)
    plan = _Replays(log, _Before.of(history, folder), *_times(log, spans, history))
    ranges = [(column, number) for column in range(log.columns + 1) for number in log.ranges_of(column)]
    keys = history.counts.used
    for done, own in enumerate(engine.map(plan, ranges), 1):
        keys += own
        progress("replaying", done * sum(rows.values()) // len(ranges))
    check_room(keys, history)
    _fill(history, plan, ranges)
    gathering, done = _Gathering(plan, stage), 0
    for own in engine.map(gathering, [number for number, file in enumerate(files) if file.part != DROPPED]):
        done += own
        progress("gathering", done)


def _ranges(rows: int) -> int:
    """In how many ranges keys are replayed: a power of two."""
    return 1 << max(0, (max(1, rows) - 1) // RANGE_ROWS).bit_length()


class _Span(NamedTuple):
    """The rows of a file, and the first and the last of their moments."""

    rows: int
    first: float
    last: float


@dataclass(frozen=True)
class _Log:
    """The rows of staged files, each with its keys in ranges, and where they are written.

    For each of the `columns` keys a file has the rows in the order of the ranges, their keys, and where each range
    begins; and in the order of the rows their moments and labels.
    """

    folder: Path
    files: Sequence[StagedFile]
    ranges: int
    columns: int

    def ranges_of(self, column: int) -> range:
        """The ranges of a key; the last column, which is the same in all rows, has one."""
        return range(1 if column == self.columns else self.ranges)

    def path(self, file: int, name: str, column: int | None = None) -> Path:
        return self.folder / f"{file}.{name}{'' if column is None else f'.{column}'}.npy"

    def load(self, file: int, name: str, column: int | None = None) -> NDArray[Any]:
        return load_mapped(self.path(file, name, column))

    def result(self, column: int, number: int, name: str) -> Path:
        return self.folder / f"{name}.{column}.{number}.npy"

    def keys_of(self, file: int, rows: NDArray[np.int64]) -> Keys:
        """The keys (n, K + 1) of some rows of a file, in their order."""
        found = np.empty((len(rows), self.columns + 1), dtype=np.uint64)
        for column in range(self.columns + 1):
            every = np.empty(len(self.load(file, "times")), dtype=np.uint64)
            every[self.load(file, "rows", column)] = self.load(file, "keys", column)
            found[:, column] = every[rows]
        return found


@dataclass(frozen=True)
class _Sorting:
    """The number of a file -> its span; its rows are left sorted by ranges of keys."""

    encoder: Encoder
    log: _Log

    def __call__(self, number: int) -> _Span:
        log, file, history = self.log, self.log.files[number], self.encoder.history
        assert history is not None
        chunk = read_staged(file.path, staged_columns(history.settings))
        settings = history.settings
        if settings.time:
            times = row_moments(chunk, settings.time, file.part, file.first)
        else:
            times = shuffled(settings, chunk, file.passed)
        save_whole(log.path(number, "times"), times)
        save_whole(log.path(number, "labels"), chunk[LABEL].to_numpy())
        keys = self.encoder.keys(chunk)
        for column in range(log.columns + 1):
            ranges = len(log.ranges_of(column))
            # The rows of a range stay in their order.
            own = _range_of(keys[:, column], ranges)
            order = np.argsort(own, kind="stable")
            save_whole(log.path(number, "rows", column), order.astype(np.uint32))
            save_whole(log.path(number, "keys", column), keys[order, column])
            save_whole(log.path(number, "starts", column), np.searchsorted(own[order], np.arange(ranges + 1)))
        return _Span(len(chunk), float(times.min()), float(times.max()))


def _range_of(keys: Keys, ranges: int) -> NDArray[np.uint16]:
    """The range of each key: its first bits say it."""
    return ((keys >> np.uint64(48)).astype(np.int64) * ranges >> 16).astype(np.uint16)


def _sorted(encoder: Encoder, log: _Log, progress: Progress, engine: Engine) -> list[_Span]:
    spans: list[_Span] = []
    for span in engine.map(_Sorting(encoder, log), range(len(log.files))):
        spans.append(span)
        progress("sorting", sum(one.rows for one in spans))
    return spans


def _times(log: _Log, spans: Sequence[_Span], history: History) -> tuple[float, bool]:
    """The last moment of the training rows, and whether held-out rows come before it; no row may come before that to
    which the history has come. A random order has no such moments."""
    come_to = history.end
    if not history.settings.time:
        return come_to, False
    training = [span for file, span in zip(log.files, spans, strict=True) if file.trains]
    others = [span for file, span in zip(log.files, spans, strict=True) if not file.trains]
    for found in (training, others):
        first = min((span.first for span in found), default=come_to)
        if first < come_to:
            raise DataError(f"history runs forward: it has come to {come_to:g}, found a row of {first:g}")
    last = max(span.last for span in training)
    return last, bool(others) and min(span.first for span in others) < last


@dataclass(frozen=True)
class _Before:
    """What a history had counted before these rows, left in files; those of its events that wait, key by key."""

    folder: Path
    settings: HistorySettings
    end: float
    added: int

    @classmethod
    def of(cls, history: History, folder: Path) -> _Before:
        before = cls(folder, history.settings, history.end, history.added)
        for name, array in history.counts.state().items():
            save_whole(before.path(name), array)
        save_whole(before.path("times"), history.waiting.times)
        save_whole(before.path("labels"), history.waiting.labels)
        for column, keys in enumerate(history.waiting.keys.T):
            save_whole(before.path(f"waiting.{column}"), keys)
        return before

    def path(self, name: str) -> Path:
        return self.folder / f"before.{name}.npy"

    def start(self, column: int, number: int, ranges: int, wanted: Keys) -> History:
        """The history of a column's keys in one range: what the wanted ones had, and the events that wait.

        With no key of its own it counts the one that all rows have, which here is the column's.
        """
        waiting, known = (load_mapped(self.path(name)) for name in (f"waiting.{column}", "keys"))
        own = np.flatnonzero(_range_of(waiting, ranges) == number)
        state = History(replace(self.settings, keys=()))
        labels, times = (load_mapped(self.path(name))[own] for name in ("labels", "times"))
        state.waiting = Events(waiting[own, None], labels, times)
        state.end, state.added = self.end, int(np.searchsorted(own, self.added))
        keys = np.union1d(wanted, waiting[own]) if len(known) else known
        places = np.searchsorted(known, keys)
        places = places[places < len(known)]
        places = places[known[places] == keys[: len(places)]]
        state.counts.loaded = tuple(load_mapped(self.path(name))[places] for name in ("keys", "values", "last"))
        return state


class _Rows(NamedTuple):
    """Rows of one range of keys, in the order of the log: their files, keys (n, 1), labels and moments."""

    files: NDArray[np.int64]
    keys: Keys
    labels: NDArray[np.uint8]
    times: Floats

    def only(self, chosen: NDArray[Any]) -> _Rows:
        return _Rows(*(own[chosen] for own in self))


@dataclass(frozen=True)
class _Replays:
    """A key's column and the number of a range -> how many new keys it has, at most; what its rows see, and its counts
    in the end, are left.

    `end` is the last moment of the training rows; `mixed` says whether held-out rows come before it.
    """

    log: _Log
    before: _Before
    end: float
    mixed: bool

    @property
    def settings(self) -> HistorySettings:
        return self.before.settings

    @property
    def view(self) -> str:
        # As in timeline.py: with a window or a random order, held-out rows have one view alone.
        one = self.settings.window or self.mixed or not self.settings.time
        return "" if one else self.settings.view

    def __call__(self, work: tuple[int, int]) -> int:
        column, rows = work[0], self._rows(*work)
        start = self.before.start(*work, len(self.log.ranges_of(column)), rows.keys[:, 0])
        known = len(start.counts.loaded[0]) if start.counts.loaded else 0
        state, keys, found = self._seen(start, rows, np.array([file.trains for file in self.log.files])[rows.files])
        for name, values in (*state.counts.state().items(), *found.items()):
            save_whole(self.log.result(*work, name), values)
        ends = np.searchsorted(rows.files, np.arange(len(self.log.files) + 1))
        save_whole(self.log.result(*work, "ends"), ends)
        return keys - known

    def _seen(self, start: History, rows: _Rows, trains: NDArray[np.bool_]) -> tuple[History, int, dict[str, Floats]]:
        """The history after the training rows; how many keys it has after all rows, at most; and what rows see in each
        view: counts and positives (n, 2)."""
        training, others = np.flatnonzero(trains), np.flatnonzero(~trains)
        state, past = copy.deepcopy(start), np.zeros((len(trains), 2))
        _replay(state, rows, training, past)
        if not self.settings.time:
            # All others see all training rows.
            start.counts.add(rows.keys[training], rows.labels[training])
            past[others] = start.counts.lookup(rows.keys[others])[:, 0]
            return start, start.counts.used, {"past": past}
        _run_on(state, self.end)
        if self.mixed:
            every = np.zeros_like(past)
            _replay(start, rows, np.concatenate([training, others]), every)
            past[others] = every[others]
            return state, _keys(start), {"past": past}
        rolled = copy.deepcopy(state)
        _replay(rolled, rows, others, past)
        if not self.view:
            return state, _keys(rolled), {"past": past}
        held, frozen = rows.only(others), past.copy()
        times = held.times if self.settings.clock else np.full(len(others), state.after)
        frozen[others] = state.counted(held.keys, times)[:, 0]
        both = (frozen, past) if self.view == "frozen" else (past, frozen)
        return state, _keys(rolled), dict(zip(("past", "other"), both, strict=True))

    def _rows(self, column: int, number: int) -> _Rows:
        found = []
        for file in range(len(self.log.files)):
            first, last = self.log.load(file, "starts", column)[number : number + 2].tolist()
            own = np.array(self.log.load(file, "rows", column)[first:last])
            keys = np.array(self.log.load(file, "keys", column)[first:last])
            labels, times = (np.array(self.log.load(file, name)[own]) for name in ("labels", "times"))
            found.append((np.full(len(own), file), keys[:, None], labels, times))
        return _Rows(*(np.concatenate(own) for own in zip(*found, strict=True)))


def _replay(state: History, rows: _Rows, wanted: NDArray[np.int64], found: Floats) -> None:
    """Lets some rows pass in the order of time; what each sees goes to its place."""
    order = wanted[np.argsort(rows.times[wanted], kind="stable")]
    own = rows.only(order)
    found[order] = state.replayed(own.keys, own.labels, own.times)[:, 0]


def _keys(state: History) -> int:
    """How many keys a history has or will have, at most."""
    return state.counts.used + len(np.unique(state.waiting.keys[state.added :]))


def _run_on(state: History, end: float) -> None:
    """Lets a history come to a moment at which no row of its own came."""
    if state.end < end:
        state.replayed(np.ones((1, 1), dtype=np.uint64), np.zeros(1), np.array([end]))
        # Who only looks has left no event.
        left = state.waiting
        state.waiting = Events(left.keys[:-1], left.labels[:-1], left.times[:-1])


def _fill(history: History, plan: _Replays, ranges: Sequence[tuple[int, int]]) -> None:
    """Takes the counts of all ranges, and the events that do not count yet, or will not for ever; keys that no row has
    keep what they had."""
    before, error = history.counts.state(), history.counts.error
    parts = {name: [load_mapped(plan.log.result(*one, name)) for one in ranges] for name in before}
    found = {name: np.concatenate(own) for name, own in parts.items()}
    left = ~np.isin(before["keys"], found["keys"])
    keys, values, last = (np.concatenate([before[name][left], found[name]]) for name in before)
    order = np.argsort(keys)
    history.counts = Counts(history.settings.most_keys, history.settings.half_life)
    history.counts.loaded, history.counts.error = (keys[order], values[order], last[order]), error
    history.end = plan.end
    if history.settings.time:
        history.waiting, history.added = _waiting(history.waiting, plan)


def _waiting(before: Events, plan: _Replays) -> tuple[Events, int]:
    """The events that had not been counted at the end, or would be taken back; and how many were counted."""
    log, rows = plan.log, _left(before.times, plan)
    found: list[tuple[Keys, NDArray[Any], Floats]] = [(before.keys[rows], before.labels[rows], before.times[rows])]
    for number in (number for number, file in enumerate(log.files) if file.trains):
        times = log.load(number, "times")
        rows = _left(times, plan)
        found.append((log.keys_of(number, rows), log.load(number, "labels")[rows], times[rows]))
    keys, labels, moments = (np.concatenate(own) for own in zip(*found, strict=True))
    order = np.argsort(moments, kind="stable")
    added = int(_counted(moments, plan).sum())
    return Events(keys[order], labels[order], moments[order]), added


def _left(times: Floats, plan: _Replays) -> NDArray[np.int64]:
    gone = _counted(times, plan)
    if plan.settings.window:
        gone &= times < plan.end - plan.settings.window
    return np.flatnonzero(~gone)


def _counted(times: Floats, plan: _Replays) -> NDArray[np.bool_]:
    return (times < plan.end) & (times <= plan.end - plan.settings.delay)


@dataclass(frozen=True)
class _Gathering:
    """The number of a file -> its rows; what they see of all keys is left as their fields."""

    plan: _Replays
    stage: Path

    def __call__(self, number: int) -> int:
        log, file = self.plan.log, self.plan.log.files[number]
        history, rows = History(self.plan.settings), len(log.load(number, "times"))
        both = {"past": past_file(self.stage, file.part)}
        if self.plan.view and file.part != "train":
            both["other"] = other_file(self.stage, file.part)
        for name, whole in both.items():
            found = np.empty((rows, log.columns + 1, 2))
            for column in range(log.columns + 1):
                self._take(number, column, name, found[:, column])
            save_whole(own_past_file(whole, file.path), history.ids_of_counts(found))
        return rows

    def _take(self, number: int, column: int, name: str, found: Floats) -> None:
        """What the rows of a file see of a key -> (n, 2)."""
        log = self.plan.log
        starts, order = log.load(number, "starts", column), log.load(number, "rows", column)
        for one in log.ranges_of(column):
            # Ranges have the rows of one file after the other.
            first, last = np.load(log.result(column, one, "ends"), mmap_mode="r")[number : number + 2].tolist()
            own = order[int(starts[one]) : int(starts[one + 1])]
            found[own] = np.load(log.result(column, one, name), mmap_mode="r", allow_pickle=False)[first:last]
