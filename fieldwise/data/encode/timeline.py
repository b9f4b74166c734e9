"""Staged parts -> the history fields of every row of theirs, and the state that the bundle takes along.

The fields of a part are left beside it as PART.past.npy. With a time column all rows are put in the order of time;
training rows see training rows, held-out rows see what predictions will see: what came before the end of the training
rows (frozen), or before themselves (rolling). What the other view gives them is PART.other.npy. Without folds the
training rows are in a random order, and held-out rows see all of them. The state is that after the training rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.staged import LABEL, ROW, Progress, read_staged, staged_files, staged_rows
from fieldwise.data.history.counts import Counts
from fieldwise.data.history.history import History, every_moment, fold_counts, folds_of, out_of_fold, shuffled
from fieldwise.data.read.parallel import in_order
from fieldwise.data.schema import ROW_ORDER, HistorySettings

# Rows that are replayed at a time, and keys of theirs where there are very many.
STEP_ROWS, STEP_KEYS = 200_000, 20_000_000


def past_file(stage: Path, part: str) -> Path:
    return stage / f"{part}.past.npy"


def other_file(stage: Path, part: str) -> Path:
    """The fields of a part's rows in the view that was not asked for, where there are two."""
    return stage / f"{part}.other.npy"


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


class _HistoryWriter:
    """Writes the history fields of the staged parts' rows, one file for each part."""

    def __init__(
        self,
        encoder: Encoder,
        history: History,
        stage: Path,
        rows: Mapping[str, int],
        progress: Progress,
    ) -> None:
        self.encoder, self.history, self.stage, self.rows, self.progress = encoder, history, stage, rows, progress
        width = len(history.names)
        self.found = {part: _writable(past_file(stage, part), (n, width)) for part, n in rows.items()}
        self.step = max(1, min(STEP_ROWS, STEP_KEYS // len(history.settings.keys)))
        self.training = [part for part in ("train", "dropped") if part in rows]
        self.others = [part for part in rows if part not in ("train", "dropped")]

    def in_folds(self) -> None:
        history, inside = self.history, Counts(self.history.settings.most_keys)
        done = 0
        for part in self.training:
            first = self.rows["train"] if part == "dropped" else 0
            for keys, chunk in keyed_chunks(self.encoder, self.stage / part):
                folds = folds_of(history.settings, chunk, first)
                fold_counts(history, keys, chunk[LABEL].to_numpy(), folds, inside)
                first += len(chunk)
                done += len(chunk)
                self.progress("counting", done)
        for part in ["train", *self.others]:
            self._write_part(part, inside)

    def in_random_order(self) -> None:
        """Training rows see those before them in a random order, all others see all training rows."""
        log = _Log(self.encoder, self.history, self.stage, {part: self.rows[part] for part in self.training})
        self._replay(copy.deepcopy(self.history), log, self.training, ["train"])
        for first in range(0, len(log.labels), self.step):
            rows = slice(first, first + self.step)
            self.history.counts.add(np.asarray(log.keys[rows]), log.labels[rows])
        for part in self.others:
            self._write_part(part)

    def _write_part(self, part: str, inside: Counts | None = None) -> None:
        files = staged_files(self.stage / part)
        firsts = np.cumsum([0, *(staged_rows(file) for file in files)])
        write_one = partial(self._write_file, part, files, firsts, inside)
        for _ in in_order(write_one, range(len(files))):
            pass

    def _write_file(
        self, part: str, files: list[Path], firsts: NDArray[np.int64], inside: Counts | None, number: int
    ) -> None:
        """Writes the fields of one file's rows; the counts do not change any more."""
        first, last = int(firsts[number]), int(firsts[number + 1])
        chunk = read_staged(files[number], staged_columns(self.history.settings))
        if part == "train" and inside is not None:
            folds = folds_of(self.history.settings, chunk, first)
            fields = out_of_fold(self.history, self.encoder.keys(chunk), folds, inside)
        else:
            fields = self.history.seen(chunk, self.encoder.buckets(chunk))
        self.found[part][first:last] = fields

    def in_time(self) -> None:
        start = copy.deepcopy(self.history)
        log = _Log(self.encoder, self.history, self.stage, self.rows)
        self._replay(self.history, log, self.training, ["train"])
        held_out = [log.times[log.places[part]].min() for part in self.others]
        if held_out and min(held_out) < self.history.end:
            # Parts that lie in one another: once more from the start, with all rows in their places.
            self._replay(start, log, [*self.training, *self.others], self.others)
        elif self.others:
            self._replay(copy.deepcopy(self.history), log, self.others, self.others)
            # A window closes at every moment, and would be counted anew for each.
            if not self.history.settings.window:
                self._frozen()

    def _frozen(self) -> None:
        """What held-out rows see of the history as the training rows left it, beside what it became until they came."""
        rolling = {part: np.array(self.found[part]) for part in self.others}
        for part in self.others:
            self._write_part(part)
        for part, fields in rolling.items():
            frozen = self.history.settings.view == "frozen"
            other = _writable(other_file(self.stage, part), fields.shape)
            other[:] = fields if frozen else self.found[part]
            if not frozen:
                self.found[part][:] = fields

    def _replay(self, history: History, log: _Log, parts: list[str], wanted: list[str]) -> None:
        """Lets the rows of some parts pass in the order of time and writes the fields of the wanted ones."""
        numbers = np.concatenate([np.arange(log.places[part].start, log.places[part].stop) for part in parts])
        order = numbers[np.argsort(log.times[numbers], kind="stable")]
        for first in range(0, len(order), self.step):
            rows = order[first : first + self.step]
            fields = history.replay(log.keys[rows], log.labels[rows], log.times[rows])
            for part in wanted:
                own = (rows >= log.places[part].start) & (rows < log.places[part].stop)
                self.found[part][rows[own] - log.places[part].start] = fields[own]
            self.progress("replaying", first + len(rows))


def _writable(file: Path, shape: tuple[int, ...]) -> NDArray[np.int32]:
    return np.lib.format.open_memmap(file, mode="w+", dtype=np.int32, shape=shape)


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


class _Log:
    """Keys, labels and times of all parts, one after the other; the keys on disk."""

    def __init__(self, encoder: Encoder, history: History, stage: Path, rows: Mapping[str, int]) -> None:
        total, width = sum(rows.values()), len(history.settings.keys) + 1
        self.keys = np.lib.format.open_memmap(stage / "keys.npy", mode="w+", dtype=np.uint64, shape=(total, width))
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
