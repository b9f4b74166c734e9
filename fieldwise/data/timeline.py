"""Staged parts -> what the history tells of every row of theirs, and the state that the bundle takes along.

What it tells of a part is left beside it as PART.past.npy. With a time column all rows are put in the order of time;
training rows see training rows, held-out rows see all that came before them. The state is that after the training rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.counts import Counts
from fieldwise.data.encoder import Encoder
from fieldwise.data.history import ROW_ORDER, History, fold_counts, folds_of, moments, out_of_fold
from fieldwise.data.staged import LABEL, ROW, staged_chunks
from fieldwise.errors import DataError

# Rows that are replayed at a time.
STEP = 200_000


def past_file(stage: Path, part: str) -> Path:
    return stage / f"{part}.past.npy"


def tell(encoder: Encoder, stage: Path, rows: Mapping[str, int], progress: Callable[[str, int], None]) -> None:
    """Fills the encoder's history from the training parts and writes every part's fields.

    The training parts are `train` and, where some of its negatives are not to be trained on, `dropped`.
    """
    history = encoder.history
    assert history is not None
    found = {part: _writable(stage, part, (n, len(history.names))) for part, n in rows.items()}
    told = _in_time if history.settings.time else _in_folds
    told(encoder, history, stage, rows, found, progress)


def _writable(stage: Path, part: str, shape: tuple[int, int]) -> NDArray[np.int32]:
    return np.lib.format.open_memmap(past_file(stage, part), mode="w+", dtype=np.int32, shape=shape)


def _training(rows: Mapping[str, int]) -> list[str]:
    return [part for part in ("train", "dropped") if part in rows]


def _in_folds(
    encoder: Encoder,
    history: History,
    stage: Path,
    rows: Mapping[str, int],
    found: Mapping[str, NDArray[np.int32]],
    progress: Callable[[str, int], None],
) -> None:
    inside = Counts(history.settings.most_keys)
    done = 0
    for part in _training(rows):
        first = rows["train"] if part == "dropped" else 0
        for chunk in staged_chunks(stage / part):
            folds = folds_of(history.settings, chunk, first)
            fold_counts(history, encoder.keys(chunk), chunk[LABEL].to_numpy(), folds, inside)
            first += len(chunk)
            done += len(chunk)
            progress("counting", done)
    for part in rows:
        first = 0
        for chunk in staged_chunks(stage / part):
            rows_here = slice(first, first + len(chunk))
            if part == "train":
                folds = folds_of(history.settings, chunk, first)
                found[part][rows_here] = out_of_fold(history, encoder.keys(chunk), folds, inside)
            elif part != "dropped":
                found[part][rows_here] = history.seen(chunk, encoder.buckets(chunk))
            first += len(chunk)


def _in_time(
    encoder: Encoder,
    history: History,
    stage: Path,
    rows: Mapping[str, int],
    found: Mapping[str, NDArray[np.int32]],
    progress: Callable[[str, int], None],
) -> None:
    start = copy.deepcopy(history)
    log = _Log(encoder, history, stage, rows)
    training, others = _training(rows), [part for part in rows if part not in ("train", "dropped")]
    _replay(history, log, training, found, ["train"], progress)
    held_out = [log.times[log.places[part]].min() for part in others]
    if held_out and min(held_out) < history.end:
        # Parts that lie in one another: once more from the start, with all rows in their places.
        _replay(start, log, [*training, *others], found, others, progress)
    elif others:
        _replay(copy.deepcopy(history), log, others, found, others, progress)


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
            for chunk in staged_chunks(stage / part):
                here = slice(first, first + len(chunk))
                self.keys[here], self.labels[here] = encoder.keys(chunk), chunk[LABEL].to_numpy()
                self.times[here] = row_moments(chunk, history.settings.time, part, first - self.places[part].start)
                first += len(chunk)


def row_moments(chunk: pa.Table, name: str, part: str, passed: int) -> NDArray[np.float64]:
    """The moments of staged rows, each of which must have one."""
    times = moments(chunk[ROW if name == ROW_ORDER else name], name, passed)
    if np.isnan(times).any():
        row = passed + int(np.flatnonzero(np.isnan(times))[0]) + 1
        raise DataError(f"the time column '{name}' must have a value in every row, found none (row {row} of {part})")
    return times


def _replay(
    history: History,
    log: _Log,
    parts: list[str],
    found: Mapping[str, NDArray[np.int32]],
    wanted: list[str],
    progress: Callable[[str, int], None],
) -> None:
    """Lets the rows of some parts pass in the order of time and writes the fields of the wanted ones."""
    numbers = np.concatenate([np.arange(log.places[part].start, log.places[part].stop) for part in parts])
    order = numbers[np.argsort(log.times[numbers], kind="stable")]
    for first in range(0, len(order), STEP):
        rows = order[first : first + STEP]
        fields = history.replay(log.keys[rows], log.labels[rows], log.times[rows])
        for part in wanted:
            own = (rows >= log.places[part].start) & (rows < log.places[part].stop)
            found[part][rows[own] - log.places[part].start] = fields[own]
        progress("replaying", first + len(rows))
