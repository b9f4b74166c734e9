"""Whether a split gives labels away: rows of one event that stand on both of its sides.

Where an event became several rows, such as one positive and two negatives of one user and context, rows alike in all
fields but one or two have labels that depend on each other: who knows the training ones can guess the held-out one. The
sign tells such a leak from an honest likeness. What people do again makes labels of like rows agree; here they exclude
each other, so that the more of them are positive in training, the less likely is a held-out row. That is what is looked
for: for each way of leaving out one field, or two, the share of held-out rows that have such training rows, and the AUC
of their mean label.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldwise.data.encode.engine import Engine, Threads
from fieldwise.data.encode.staged import LABEL, read_staged, staged_chunks, staged_files, staged_rows, staged_schema
from fieldwise.data.history.history import mixed
from fieldwise.data.read.formats import is_list
from fieldwise.data.read.texts import texts_of

Hashes = NDArray[np.uint64]
# The most held-out rows to look at, and cells; and the most first training rows, which say what is worth a look at all
# of them.
HELD_ROWS, HELD_CELLS, FIRST_ROWS, FIRST_CELLS = 10_000, 8_000_000, 100_000, 8_000_000
# Fields that are left out two at a time, those that leave the most rows alike or have the most values where there are
# more of them; and how many suspects are followed through all training rows.
PAIRED_FIELDS, SUSPECTS = 16, 20
# A leak: this share of held-out rows has fewer than this many similar training rows, whose mean label has an AUC
# below this.
LEAST_SHARE, LARGEST_GROUP, LARGEST_AUC = 0.2, 30, 0.4
# The standard errors that the AUC must lie below 0.5: among many suspects, one is low by luck.
ERRORS = 5.0
# Bits of a hash that say at once that a group is not among the held-out ones.
BITS = 18


@dataclass(frozen=True)
class Leak:
    """Fields left out; the share of held-out rows with training rows alike in all others; how many, in the middle;
    and how well the mean label of these tells the held-out one."""

    left_out: tuple[str, ...]
    alike_in: tuple[str, ...]
    share: float
    group_size: float
    auc: float

    def warning(self, part: str, files: bool, folds: bool) -> str:
        """The line for the user; there is more to do where parts are `files`, or where a history has `folds`."""
        group = ",".join(self.alike_in)
        join = "join the files and use " if files else ""
        too = f" and --history-set group={group}" if folds else ""
        return (
            f"the split may give labels away: {self.share:.0%} of the {part} rows have training rows alike in all "
            f"fields but {' and '.join(self.left_out)} (a median of {self.group_size:g}), and the more of these are "
            f"positive, the less likely the row is (AUC {self.auc:.2f}). If they come from one event, keep them "
            f"together: {join}--split-group {group}{too}"
        )


def find_leak(
    stage: Path, rows: Mapping[str, int], part: str, fields: Sequence[str], engine: Engine | None = None
) -> Leak | None:
    """The plainest leak between the staged training rows and those of a part, if there is one."""
    if len(fields) < 2:
        return None
    held, labels = _held_out(stage / part, fields)
    hasher = _Hasher(held, fields, staged_schema(stage / "train"))
    total, hashes = hasher(held, range(len(fields)))
    first = max(1, min(FIRST_ROWS, FIRST_CELLS // len(fields)))
    head = _first(staged_chunks(stage / "train", [*fields, LABEL]), first)
    known = [(*hasher(chunk, range(len(fields))), chunk[LABEL].to_numpy()) for chunk in head]

    def grouped(left_out: tuple[int, ...]) -> _Groups:
        groups = _Groups(left_out, total, hashes)
        for some in known:
            groups.count(*some)
        return groups

    shares: dict[int, float] = {}

    def ways() -> Iterator[_Groups]:
        """All ways of leaving out one field, and then two: one at a time, because there may be very many."""
        for field in range(len(fields)):
            groups = grouped((field,))
            shares[field] = groups.share
            yield groups
        best = sorted(shares, key=lambda field: (-shares[field], -hasher.distinct[field]))[:PAIRED_FIELDS]
        yield from map(grouped, itertools.combinations(sorted(best), 2) if len(fields) > 2 else ())

    seen = min(1.0, first / rows["train"])
    if seen == 1:
        return _plainest(ways(), labels, fields)
    suspects = _suspects(ways(), labels, seen)
    following = _Following(suspects, hasher, [*fields, LABEL])
    for counts in (engine or Threads()).map(following, _behind(stage / "train", first) if suspects else ()):
        for groups, own in zip(suspects, counts, strict=True):
            groups.counts += own
    return _plainest(suspects, labels, fields)


def _suspects(ways: Iterable[_Groups], labels: NDArray[np.bool_], seen: float) -> list[_Groups]:
    """The groups that are worth a look at all rows, those of the largest share first."""
    found: list[_Groups] = []
    for groups in ways:
        if groups.worth_a_look(labels, seen):
            found = sorted([*found, groups], key=lambda one: -one.share)[:SUSPECTS]
    return found


def _plainest(suspects: Iterable[_Groups], labels: NDArray[np.bool_], fields: Sequence[str]) -> Leak | None:
    """Of the groups that leak, those with the fewest fields left out, and of these the ones that tell the most."""
    leaks = []
    for groups in suspects:
        size, area, error = groups.measure(labels)
        if groups.share > LEAST_SHARE and size < LARGEST_GROUP and area < min(LARGEST_AUC, 0.5 - ERRORS * error):
            leaks.append((groups.left_out, groups.share, size, area))
    if not leaks:
        return None
    numbers, *measured = min(leaks, key=lambda leak: (len(leak[0]), leak[1] * (leak[3] - 0.5)))
    left_out = tuple(fields[number] for number in numbers)
    return Leak(left_out, tuple(name for name in fields if name not in left_out), *measured)


def _held_out(path: Path, fields: Sequence[str]) -> tuple[pa.Table, NDArray[np.bool_]]:
    most = max(1, min(HELD_ROWS, HELD_CELLS // len(fields)))
    rows = pa.concat_tables(_first(staged_chunks(path, [*fields, LABEL]), most))
    return rows, rows[LABEL].to_numpy() > 0


def _first(chunks: Iterator[pa.Table], rows: int) -> list[pa.Table]:
    """The first `rows` rows."""
    head: list[pa.Table] = []
    for chunk in chunks:
        head.append(chunk.slice(0, rows))
        rows -= len(head[-1])
        if not rows:
            break
    return head


def _behind(part: Path, rows: int) -> Iterator[tuple[Path, int]]:
    """The files that have more than the first `rows` rows, each with how many of its rows are among these."""
    for file in staged_files(part):
        own = staged_rows(file)
        if own > rows:
            yield file, rows
        rows = max(0, rows - own)


class _Hasher:
    """Rows -> a hash of each field, made from the place of its value among the held-out rows' values."""

    def __init__(self, held: pa.Table, fields: Sequence[str], training: pa.Schema) -> None:
        plain = {name: _plain(held[name]) for name in fields}
        # Parts that are files of their own may hold a column in two types; texts compare.
        self.as_text = {name for name in fields if plain[name].type != training.field(name).type}
        self.values = {name: _plain(held[name], name in self.as_text).unique() for name in fields}
        # How many values the held-out rows have in each field.
        self.distinct = [len(values) for values in self.values.values()]

    def __call__(self, table: pa.Table, wanted: Collection[int]) -> tuple[Hashes, dict[int, Hashes]]:
        """The sum of all fields' hashes (n,), from which fields can be taken away again, and the wanted hashes."""
        total, found = np.zeros(len(table), dtype=np.uint64), {}
        for field, (name, values) in enumerate(self.values.items()):
            column = _plain(table[name], name in self.as_text)
            places = pc.index_in(column, value_set=values).fill_null(len(values))
            hashes = mixed([places.to_numpy().astype(np.uint64)], field)
            total += hashes
            if field in wanted:
                found[field] = hashes
        return total, found


def _plain(column: pa.ChunkedArray, as_text: bool = False) -> pa.ChunkedArray:
    """A column whose values can be looked up: no lists and no dictionaries."""
    if as_text or is_list(column.type):
        texts, places = texts_of(column)
        return pa.chunked_array([pa.array(texts, pa.string()).take(pa.array(places))])
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


class _Groups:
    """The held-out rows by what they are alike in, and the training rows of each group: how many, how many positive."""

    def __init__(self, left_out: tuple[int, ...], total: Hashes, hashes: Mapping[int, Hashes]) -> None:
        self.left_out = left_out
        self.keys, self.places = np.unique(self._groups(total, hashes), return_inverse=True)
        self.counts = np.zeros((2, len(self.keys)))
        self.maybe = np.zeros(1 << BITS, dtype=bool)
        self.maybe[self.keys >> np.uint64(64 - BITS)] = True

    def _groups(self, total: Hashes, hashes: Mapping[int, Hashes]) -> Hashes:
        for field in self.left_out:
            total = total - hashes[field]
        return total

    def count(self, total: Hashes, hashes: Mapping[int, Hashes], labels: NDArray[Any]) -> None:
        """Counts training rows."""
        groups = self._groups(total, hashes)
        rows = np.flatnonzero(self.maybe[groups >> np.uint64(64 - BITS)])
        places = np.minimum(np.searchsorted(self.keys, groups[rows]), len(self.keys) - 1)
        same = self.keys[places] == groups[rows]
        places, rows = places[same], rows[same]
        self.counts[0] += np.bincount(places, minlength=len(self.keys))
        self.counts[1] += np.bincount(places, weights=labels[rows], minlength=len(self.keys))

    @property
    def share(self) -> float:
        """The share of held-out rows with training rows in their group."""
        return float((self.counts[0][self.places] > 0).mean())

    def worth_a_look(self, labels: NDArray[np.bool_], seen: float) -> bool:
        """Whether a leak is possible after some training rows; one row alike is among them with the chance `seen`."""
        _, area, error = self.measure(labels)
        return self.share > seen * LEAST_SHARE / 2 and area < 0.5 + 2 * error

    def measure(self, labels: NDArray[np.bool_]) -> tuple[float, float, float]:
        """The median size of the held-out rows' groups, the AUC of the groups' mean label, and its standard error."""
        count, positives = self.counts[:, self.places]
        there = count > 0
        of, positive = labels[there], int(labels[there].sum())
        if positive in (0, len(of)):
            return 0.0, 0.5, 1.0
        area = auc(positives[there] / count[there], of)
        error = np.sqrt((1 / positive + 1 / (len(of) - positive)) / 12)
        return float(np.median(count[there])), area, float(error)


@dataclass(frozen=True)
class _Following:
    """A file, and the rows of it that were counted -> what each suspect's groups have of the others."""

    suspects: Sequence[_Groups]
    hasher: _Hasher
    columns: Sequence[str]

    def __call__(self, work: tuple[Path, int]) -> list[NDArray[np.float64]]:
        file, counted = work
        chunk = read_staged(file, self.columns).slice(counted)
        wanted = sorted({field for groups in self.suspects for field in groups.left_out})
        more, found = (*self.hasher(chunk, wanted), chunk[LABEL].to_numpy()), []
        for groups in self.suspects:
            own = copy.copy(groups)
            own.counts = np.zeros_like(groups.counts)
            own.count(*more)
            found.append(own.counts)
        return found


def auc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """The chance that a positive row scores above a negative one, ties counting half."""
    values, places = np.unique(scores, return_inverse=True)
    positive = np.bincount(places[labels], minlength=len(values))
    negative = np.bincount(places[~labels], minlength=len(values))
    below = np.cumsum(negative) - negative / 2
    return float(positive @ below / (positive.sum() * negative.sum()))
