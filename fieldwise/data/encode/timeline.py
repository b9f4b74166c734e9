"""Staged parts -> the history and the sequences of every row of theirs, and the state that the bundle takes along.

The fields of a part are left beside it as PART.past.npy. With a time column all rows are put in the order of time;
training rows see training rows, held-out rows see what predictions will see: what came before the end of the training
rows (frozen), or before themselves (rolling). What the other view gives them is PART.other.npy. Without folds the
training rows are in a random order, and held-out rows see all of them. The state is that after the training rows.
The ids of sequence K are PART.past.K.npy and PART.other.K.npy.
"""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.files import FULL
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.staged import LABEL, ROW, Progress, read_staged, staged_files, staged_rows
from fieldwise.data.history.counts import Counts
from fieldwise.data.history.history import History, every_moment, fold_counts, folds_of, out_of_fold, shuffled
from fieldwise.data.history.sequences import Past
from fieldwise.data.read.parallel import in_order
from fieldwise.data.schema import ROW_ORDER, HistorySettings

# Rows that are replayed at a time, and keys of theirs where there are very many.
STEP_ROWS, STEP_KEYS = 200_000, 20_000_000


def past_file(stage: Path, part: str, sequence: int | None = None) -> Path:
    return stage / f"{part}.past{'' if sequence is None else f'.{sequence}'}.npy"


def other_file(stage: Path, part: str, sequence: int | None = None) -> Path:
    """The fields of a part's rows in the view that was not asked for, where there are two."""
    return stage / f"{part}.other{'' if sequence is None else f'.{sequence}'}.npy"


def own_past_file(file: Path, staged: Path) -> Path:
    """Where the rows of one staged file have what `file` has of their part, where that was written in shards."""
    return file.with_suffix("") / f"{staged.stem}.npy"


def is_there(file: Path) -> bool:
    """Whether what a part's rows see was written, in one file or in shards."""
    return file.exists() or file.with_suffix("").is_dir()


def past_of(file: Path, staged: Path, rows: slice) -> NDArray[np.int32]:
    """What the rows of one staged file see, which are these rows of their part."""
    own = own_past_file(file, staged)
    # Mapped for these rows alone, so that no more than they stay in memory.
    if own.exists():
        return np.asarray(np.load(own, mmap_mode="r", allow_pickle=False))
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)[rows])


def write_history(encoder: Encoder, stage: Path, rows: Mapping[str, int], progress: Progress) -> None:
    """Fills the encoder's history from the training parts and writes every part's fields.

    The training parts are `train` and, where some of its negatives are not to be trained on, `dropped`.
    """
    assert encoder.history is not None
    writer = _HistoryWriter(encoder, encoder.history, stage, rows, progress)
    if encoder.history.settings.time:
        writer.in_time()
    elif encoder.history.settings.folds:
        writer.in_folds()
    else:
        writer.in_random_order()


def write_sequences(encoder: Encoder, stage: Path, rows: Mapping[str, int], progress: Progress) -> None:
    """Fills the encoder's sequences from the training parts and writes every part's ids."""
    for number, past in enumerate(encoder.pasts):
        _SequenceWriter(encoder, past, number, stage, rows, progress).in_time()


class _Log(Protocol):
    """All parts' rows one after the other: the times of all, and the place of each part."""

    times: NDArray[np.float64]
    places: dict[str, slice]


L = TypeVar("L", bound=_Log)
S = TypeVar("S")


class _Writer(ABC, Generic[S, L]):
    """Writes what the staged parts' rows see of the past, one file for each part; `state` is what rows change."""

    sequence: int | None = None
    # Rows that are replayed at a time.
    step = STEP_ROWS

    def __init__(
        self, encoder: Encoder, state: S, stage: Path, rows: Mapping[str, int], progress: Progress, width: int
    ) -> None:
        self.encoder, self.state, self.stage, self.rows, self.progress = encoder, state, stage, rows, progress
        self.found = {part: _writable(past_file(stage, part, self.sequence), (n, width)) for part, n in rows.items()}
        self.training = [part for part in ("train", "dropped") if part in rows]
        self.others = [part for part in rows if part not in ("train", "dropped")]

    @property
    @abstractmethod
    def view(self) -> str:
        """The view that was asked for; empty where held-out rows have one alone."""

    @abstractmethod
    def log(self, rows: Mapping[str, int]) -> L:
        """The log of some parts, which have so many rows."""

    @abstractmethod
    def end(self) -> float:
        """The last moment that the state has come to."""

    @abstractmethod
    def passed(self, state: S, log: L, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """What rows of the log see, in the order of time; then the state has counted them."""

    @abstractmethod
    def fields(self, part: str, file: Path, first: int) -> NDArray[np.int32]:
        """What the rows of one file see of the state as it is."""

    def in_time(self) -> None:
        start = copy.deepcopy(self.state)
        log = self.log(self.rows)
        self._replay(self.state, log, self.training, ["train"])
        held_out = [log.times[log.places[part]].min() for part in self.others]
        if held_out and min(held_out) < self.end():
            # Parts that lie in one another: once more from the start, with all rows in their places.
            self._replay(start, log, [*self.training, *self.others], self.others)
        elif self.others:
            self._replay(copy.deepcopy(self.state), log, self.others, self.others)
            if self.view:
                self._frozen()

    def _frozen(self) -> None:
        """What held-out rows see of the past as the training rows left it, beside what it became until they came."""
        for part in self.others:
            found = self.found[part]
            other = _writable(other_file(self.stage, part, self.sequence), found.shape)
            for first in range(0, len(found), self.step):
                other[first : first + self.step] = found[first : first + self.step]
            self.write_part(part)
            for first in range(0, len(found), self.step) if self.view != "frozen" else ():
                rows = slice(first, first + self.step)
                found[rows], other[rows] = np.array(other[rows]), np.array(found[rows])

    def _replay(self, state: S, log: L, parts: list[str], wanted: list[str]) -> None:
        """Lets the rows of some parts pass in the order of time and writes the fields of the wanted ones."""
        numbers = np.concatenate([np.arange(log.places[part].start, log.places[part].stop) for part in parts])
        order = numbers[np.argsort(log.times[numbers], kind="stable")]
        for first in range(0, len(order), self.step):
            rows = order[first : first + self.step]
            fields = self.passed(state, log, rows)
            for part in wanted:
                own = (rows >= log.places[part].start) & (rows < log.places[part].stop)
                self.found[part][rows[own] - log.places[part].start] = fields[own]
            self.progress("replaying", first + len(rows))

    def write_part(self, part: str) -> None:
        """Writes what the rows of a part see of the state, which does not change any more."""
        files = staged_files(self.stage / part)
        firsts = np.cumsum([0, *(staged_rows(file) for file in files)])
        for _ in in_order(partial(self._write_file, part, files, firsts), range(len(files))):
            pass

    def _write_file(self, part: str, files: list[Path], firsts: NDArray[np.int64], number: int) -> None:
        first, last = int(firsts[number]), int(firsts[number + 1])
        self.found[part][first:last] = self.fields(part, files[number], first)


class _HistoryWriter(_Writer[History, "_KeyLog"]):
    """Writes the history fields of the staged parts' rows."""

    def __init__(
        self, encoder: Encoder, history: History, stage: Path, rows: Mapping[str, int], progress: Progress
    ) -> None:
        super().__init__(encoder, history, stage, rows, progress, len(history.names))
        self.settings = history.settings
        self.inside: Counts | None = None
        self.step = max(1, min(STEP_ROWS, STEP_KEYS // len(history.settings.keys)))

    @property
    def view(self) -> str:
        # A window closes at every moment, and would be counted anew for each.
        return "" if self.settings.window else self.settings.view

    def in_folds(self) -> None:
        history, inside = self.state, Counts(self.settings.most_keys)
        done = 0
        for part in self.training:
            first = self.rows["train"] if part == "dropped" else 0
            for keys, chunk in keyed_chunks(self.encoder, self.stage / part):
                folds = folds_of(history.settings, chunk, first)
                fold_counts(history, keys, chunk[LABEL].to_numpy(), folds, inside)
                first += len(chunk)
                done += len(chunk)
                self.progress("counting", done)
        self.inside = inside
        for part in ["train", *self.others]:
            self.write_part(part)

    def in_random_order(self) -> None:
        """Training rows see those before them in a random order, all others see all training rows."""
        log = self.log({part: self.rows[part] for part in self.training})
        self._replay(copy.deepcopy(self.state), log, self.training, ["train"])
        for first in range(0, len(log.labels), self.step):
            rows = slice(first, first + self.step)
            self.state.counts.add(np.asarray(log.keys[rows]), log.labels[rows])
        for part in self.others:
            self.write_part(part)

    def log(self, rows: Mapping[str, int]) -> _KeyLog:
        return _KeyLog(self.encoder, self.state, self.stage, rows)

    def end(self) -> float:
        return self.state.end

    def passed(self, state: History, log: _KeyLog, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        return state.replay(log.keys[rows], log.labels[rows], log.times[rows])

    def fields(self, part: str, file: Path, first: int) -> NDArray[np.int32]:
        chunk = read_staged(file, staged_columns(self.settings))
        if part == "train" and self.inside is not None:
            folds = folds_of(self.settings, chunk, first)
            return out_of_fold(self.state, self.encoder.keys(chunk), folds, self.inside)
        return self.state.seen(chunk, self.encoder.buckets(chunk))


class _SequenceWriter(_Writer[Past, "_EventLog"]):
    """Writes the ids of one sequence: those of its fields, one behind the other."""

    def __init__(
        self, encoder: Encoder, past: Past, number: int, stage: Path, rows: Mapping[str, int], progress: Progress
    ) -> None:
        self.sequence, self.settings = number, past.settings
        super().__init__(encoder, past, stage, rows, progress, past.width)
        self.step = max(1, min(STEP_ROWS, STEP_KEYS // past.width))

    @property
    def view(self) -> str:
        return self.settings.view

    def log(self, rows: Mapping[str, int]) -> _EventLog:
        return _EventLog(self.encoder, self.state, self.stage, rows)

    def end(self) -> float:
        return self.state.trail.end

    def passed(self, state: Past, log: _EventLog, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        found = state.replay(log.keys[rows], log.ids[rows], log.labels[rows], log.times[rows])
        return found.reshape(len(rows), -1)

    def fields(self, part: str, file: Path, first: int) -> NDArray[np.int32]:
        order = [ROW] if not self.settings.clock else []
        chunk = read_staged(file, [*dict.fromkeys(self.settings.columns), *order])
        ids = self.state.seen(chunk, self.encoder.buckets(chunk, self.settings.columns_needed))
        return np.hstack(list(ids.values()))


def _writable(file: Path, shape: tuple[int, ...], kind: type[np.generic] = np.int32) -> NDArray[Any]:
    """An array to be filled in a file that has all of its room: writing through a map to a full disk ends the process
    without a word."""
    found = np.lib.format.open_memmap(file, mode="w+", dtype=kind, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, os.fstat(opened.fileno()).st_size)
            except OSError as error:
                if error.errno in FULL:
                    raise
    return found


def keyed_chunks(encoder: Encoder, part: Path) -> Iterator[tuple[NDArray[np.uint64], pa.Table]]:
    """Staged rows and their keys, by several threads."""

    assert encoder.history is not None
    columns = staged_columns(encoder.history.settings)

    def keyed(file: Path) -> tuple[NDArray[np.uint64], pa.Table]:
        chunk = read_staged(file, columns)
        return encoder.keys(chunk), chunk

    return in_order(keyed, staged_files(part))


def staged_columns(settings: HistorySettings, more: Sequence[str] = ()) -> list[str]:
    """The staged columns that a history needs, behind `more` of them."""
    order = [ROW] if settings.time == ROW_ORDER else []
    return list(dict.fromkeys([*more, *settings.columns_needed, *order, LABEL]))


class _KeyLog:
    """Keys, labels and times of all parts, one after the other; the keys on disk."""

    def __init__(self, encoder: Encoder, history: History, stage: Path, rows: Mapping[str, int]) -> None:
        total, width = sum(rows.values()), len(history.settings.keys) + 1
        self.keys = _writable(stage / "keys.npy", (total, width), np.uint64)
        self.labels, self.times = np.empty(total, dtype=np.uint8), np.empty(total)
        self.places: dict[str, slice] = {}
        first = 0
        for part, count in rows.items():
            self.places[part] = slice(first, first + count)
            for keys, chunk in keyed_chunks(encoder, stage / part):
                here = slice(first, first + len(chunk))
                self.keys[here], self.labels[here] = keys, chunk[LABEL].to_numpy()
                self.times[here] = (
                    row_moments(chunk, history.settings.time, part, first - self.places[part].start)
                    if history.settings.time
                    else shuffled(history.settings, chunk, first)
                )
                first += len(chunk)


def row_moments(chunk: pa.Table, name: str, part: str, passed: int) -> NDArray[np.float64]:
    """The moments of staged rows, each of which must have one."""
    return every_moment(chunk[ROW if name == ROW_ORDER else name], name, passed, f" of {part}")


class _EventLog:
    """Keys, ids, labels and times of all parts, one after the other; keys and ids on disk."""

    def __init__(self, encoder: Encoder, past: Past, stage: Path, rows: Mapping[str, int]) -> None:
        total, columns = sum(rows.values()), len(past.codes)
        self.keys = _writable(stage / "events.npy", (total,), np.uint64)
        self.ids = _writable(stage / "events.ids.npy", (total, columns))
        self.labels, self.times = np.empty(total, dtype=np.uint8), np.empty(total)
        self.places: dict[str, slice] = {}
        wanted = [*past.columns, ROW if past.settings.time == ROW_ORDER else past.settings.time, LABEL]

        def read(file: Path) -> tuple[NDArray[np.uint64], NDArray[np.int32], pa.Table]:
            chunk = read_staged(file, list(dict.fromkeys(wanted)))
            buckets = encoder.buckets(chunk, past.settings.columns_needed)
            return past.keys_of(chunk, buckets), past.ids_of(chunk), chunk

        first = 0
        for part, count in rows.items():
            self.places[part] = slice(first, first + count)
            for keys, ids, chunk in in_order(read, staged_files(stage / part)):
                here, passed = slice(first, first + len(chunk)), first - self.places[part].start
                self.keys[here], self.ids[here], self.labels[here] = keys, ids, chunk[LABEL].to_numpy()
                self.times[here] = row_moments(chunk, past.settings.time, part, passed)
                first += len(chunk)
