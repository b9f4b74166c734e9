"""The history of staged rows in shards: what timeline.py writes, from the same counts.

In folds, each shard of the training rows is counted by itself, and the counts of each range of keys are summed; then
every file looks up its own rows. In an order of the rows, see time_shards.py. A part's fields are in a folder, a file
for each of its staged files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError
from fieldwise.config.files import whole_anywhere
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.engine import Engine
from fieldwise.data.encode.fit_shards import shards_of
from fieldwise.data.encode.stage import DROPPED
from fieldwise.data.encode.staged import LABEL, Progress, read_staged, staged_files, staged_rows
from fieldwise.data.encode.timeline import own_past_file, past_file, staged_columns
from fieldwise.data.history.counts import Counts, Keys
from fieldwise.data.history.history import History, fold_counts, folds_of, out_of_fold

# Where counts are, under the staged rows; and the ranges of keys that are summed apart.
FOLDER, RANGES = "past", 16


@dataclass(frozen=True)
class StagedFile:
    """A staged file; how many rows of its part come before it, and how many of all that a history counts."""

    part: str
    path: Path
    first: int
    passed: int

    @property
    def trains(self) -> bool:
        """Whether a history counts its rows."""
        return self.part in ("train", DROPPED)


def files_of(stage: Path, parts: Collection[str]) -> list[StagedFile]:
    """The staged files of some parts, in the order of their rows."""
    found: list[StagedFile] = []
    rows: dict[str, int] = {}
    for part in parts:
        first, before = 0, rows.get("train", 0) if part == DROPPED else 0
        for path in staged_files(stage / part):
            found.append(StagedFile(part, path, first, before + first))
            first += staged_rows(path)
        rows[part] = first
    return found


def save_whole(file: Path, array: NDArray[Any]) -> None:
    """Writes an .npy file that appears whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    with whole_anywhere(file) as work, work.open("wb") as opened:
        np.save(opened, array)


def load_mapped(file: Path) -> NDArray[Any]:
    """The array of an .npy file, of which only what is looked at comes into memory."""
    return np.load(file, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]


def check_room(keys: int, history: History) -> None:
    """Refuses more keys than one machine would count without dropping some: which these are depends on the order."""
    most = history.settings.most_keys
    if keys + len(history.settings.keys) + 1 > most:
        raise ConfigError(
            f"on a cluster no key of a history is dropped, found {keys} of most_keys={most}; set --history-set "
            f"most_keys={2 * keys}, or prepare on one machine"
        )


def fold_history(encoder: Encoder, stage: Path, rows: Mapping[str, int], progress: Progress, engine: Engine) -> None:
    """Counts the training parts in the encoder's history, and writes the fields of every part's files."""
    history, folder = encoder.history, stage / FOLDER
    assert history is not None
    folder.mkdir(exist_ok=True)
    training = [file for file in files_of(stage, rows) if file.trains]
    places = {file.path: file for file in training}
    shards = [[places[path] for path in own] for own in shards_of(list(places))]
    # What was counted before comes like a shard of its own.
    for name, counts in (("all", history.counts), ("inside", Counts())):
        _save_counts(counts, folder, f"{len(shards)}.{name}")
    counting = _Counting(encoder.without_past, folder)
    done = 0
    for own in engine.map(counting, list(enumerate(shards))):
        done += own
        progress("counting", done)
    wanted = [(name, number) for name in ("all", "inside") for number in range(RANGES)]
    keys = dict.fromkeys(("all", "inside"), 0)
    for (name, _), found in zip(wanted, engine.map(_Summing(folder, len(shards) + 1), wanted), strict=True):
        keys[name] += found
    for found in keys.values():
        check_room(found, history)
    error = history.counts.error
    history.counts = summed(folder, "all", history)
    history.counts.error = error
    looking = _Looking(encoder.without_past, folder, stage)
    files = files_of(stage, [part for part in rows if part != DROPPED])
    done = 0
    for own in engine.map(looking, files):
        done += own
        progress("looking up", done)


@dataclass(frozen=True)
class _Counting:
    """A shard's number and files -> its rows; its keys in rising order and what they had are left in files."""

    encoder: Encoder
    folder: Path

    def __call__(self, work: tuple[int, Sequence[StagedFile]]) -> int:
        number, files = work
        encoder = self.encoder
        assert encoder.history is not None
        settings = encoder.history.settings
        own, inside, rows = History(settings), Counts(settings.most_keys), 0
        for file in files:
            chunk = read_staged(file.path, staged_columns(settings))
            folds = folds_of(settings, chunk, file.passed)
            fold_counts(own, encoder.keys(chunk), chunk[LABEL].to_numpy(), folds, inside)
            rows += len(chunk)
        for name, counts in (("all", own.counts), ("inside", inside)):
            if counts.error:
                check_room(settings.most_keys, own)
            _save_counts(counts, self.folder, f"{number}.{name}")
        return rows


@dataclass(frozen=True)
class _Summing:
    """A table's name and the number of a range of keys -> how many there are; their sums over shards are left."""

    folder: Path
    shards: int

    def __call__(self, work: tuple[str, int]) -> int:
        name, number = work
        keys, values = [], []
        for shard in range(self.shards):
            every, held = (load_mapped(file) for file in _files_of(self.folder, f"{shard}.{name}"))
            own = in_range(every, number, RANGES)
            keys.append(np.array(every[own]))
            values.append(np.array(held[own]))
        joined, of = np.unique(np.concatenate(keys), return_inverse=True)
        every = np.concatenate(values)
        sums = np.stack([np.bincount(of, every[:, place], len(joined)) for place in (0, 1)], axis=1)
        for file, array in zip(_files_of(self.folder, f"{name}.{number}"), (joined, sums), strict=True):
            save_whole(file, array)
        return len(joined)


def _save_counts(counts: Counts, folder: Path, name: str) -> None:
    """Leaves the keys of a table in rising order, and what they had."""
    state = counts.state()
    for file, what in zip(_files_of(folder, name), ("keys", "values"), strict=True):
        save_whole(file, state[what])


def _files_of(folder: Path, name: str) -> tuple[Path, Path]:
    """Where the keys of a table are, and what they had."""
    return folder / f"{name}.keys.npy", folder / f"{name}.values.npy"


def in_range(keys: Keys, number: int, ranges: int) -> slice:
    """Where rising keys are in one of so many ranges of all 64-bit numbers, a power of two of them."""
    width = (1 << 64) // ranges
    first = int(np.searchsorted(keys, np.uint64(number * width)))
    last = len(keys) if number + 1 == ranges else int(np.searchsorted(keys, np.uint64((number + 1) * width)))
    return slice(first, last)


def summed(folder: Path, name: str, history: History) -> Counts:
    """The sums of all ranges of a table."""
    parts = zip(*(_files_of(folder, f"{name}.{number}") for number in range(RANGES)), strict=True)
    keys, values = (np.concatenate([np.load(file, allow_pickle=False) for file in files]) for files in parts)
    counts = Counts(history.settings.most_keys)
    counts.loaded = keys, values, np.zeros(len(keys))
    return counts


@dataclass(frozen=True)
class _Looking:
    """A staged file -> its rows; what they see of the other folds, or of all training rows, is left in a file."""

    encoder: Encoder
    folder: Path
    stage: Path

    @cached_property
    def history(self) -> History:
        assert self.encoder.history is not None
        history = History(self.encoder.history.settings)
        history.counts = summed(self.folder, "all", history)
        return history

    @cached_property
    def inside(self) -> Counts:
        return summed(self.folder, "inside", self.history)

    def __call__(self, file: StagedFile) -> int:
        history = self.history
        chunk = read_staged(file.path, staged_columns(history.settings))
        if file.part == "train":
            folds = folds_of(history.settings, chunk, file.first)
            fields = out_of_fold(history, self.encoder.keys(chunk), folds, self.inside)
        else:
            fields = history.seen(chunk, self.encoder.buckets(chunk))
        save_whole(own_past_file(past_file(self.stage, file.part), file.path), fields)
        return len(chunk)
