"""Which part a row goes to: at random, in the order of a column or of the rows, or by group."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, DataError, missing_column
from fieldwise.data.dataset import PARTS
from fieldwise.data.draws import SPLIT, stream
from fieldwise.data.history.history import column_hashes, mixed
from fieldwise.data.read.moments import day_of, moment_of, seconds, words_of
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import ROW_ORDER

Rows = Callable[[], Iterator[pa.Table]]
# The labels of a chunk, behind the rows that have passed.
Labels = Callable[[pa.Table, int], NDArray[np.uint8]]
# From a chunk, its labels and the number of rows before it to the part number of each of its rows.
Assign = Callable[[pa.Table, NDArray[np.uint8], int], NDArray[np.int64]]
# Rows of one label that are drawn together: each such block has its share in every part.
STRATUM = 20


@dataclass(frozen=True)
class Split:
    """Which part a row goes to: at random by `shares`, or in the order of a column `by` (`row`: file order).

    At random, each label is drawn by itself. With `group`, rows that have the same values in these columns go to the
    same part. `time` says how the times in `by` are written where nobody named the column: then rows are split at
    random if their order leaves a part without both labels.
    """

    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    by: str = ""
    seed: int = 0
    group: tuple[str, ...] = ()
    time: str = ""

    def __post_init__(self) -> None:
        if not (min(self.shares) >= 0 and abs(sum(self.shares) - 1) <= 1e-6 and self.shares[0] > 0):
            found = ",".join(f"{share:g}" for share in self.shares)
            raise ConfigError(f"--split needs three shares that sum to 1, such as 0.8,0.1,0.1, found {found}")
        if self.seed < 0:
            raise ConfigError(f"--seed must be 0 or more, found {self.seed}")
        if self.by and self.group:
            raise ConfigError("--split-by and --split-group exclude each other: by order, or by group at random")

    def beside(self, sources: Collection[str]) -> Split:
        """The same where test rows are given apart: their share goes to training, and the validation rows stay."""
        if set(sources) != {"train", "test"} or not self.shares[2]:
            return self
        return replace(self, shares=(1 - self.shares[1], self.shares[1], 0.0))

    def divides(self, sources: Collection[str]) -> bool:
        """Whether training rows are split: none are given apart, or test rows are and `shares` leave them none."""
        return set(sources) == {"train"} or (set(sources) == {"train", "test"} and not self.shares[2])

    def is_order_of(self, chunk: pa.Table) -> bool:
        """Whether rows are split in the order of their file, and not by a column that happens to be called `row`."""
        return self.by == ROW_ORDER and ROW_ORDER not in chunk.column_names


def order_bounds(split: Split, rows: int) -> NDArray[np.float64]:
    """The first row that goes to validation, and to test, of `rows`."""
    return np.asarray(np.floor(np.cumsum(split.shares)[:2] * rows + 1e-9))


def at_random(split: Split) -> Callable[[NDArray[np.uint8]], NDArray[np.int64]]:
    """A function that gives the part numbers of the next rows by their labels; where the rows are cut does not matter.

    Both labels are drawn apart, block after block, so that all parts have the same rate of positives: what few of them
    say of a part would else be chance.
    """
    edges, strata = np.cumsum(split.shares)[:2], [_Stratum(split.seed, label) for label in (0, 1)]

    def parts(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
        found = np.empty(len(labels), dtype=np.int64)
        for label, stratum in enumerate(strata):
            own = labels == label
            found[own] = np.searchsorted(edges, stratum.next(int(own.sum())), side="right")
        return found

    return parts


class _Stratum:
    """Numbers in [0, 1) for the rows of one label: uniform, and in each block of rows evenly spaced in random order."""

    def __init__(self, seed: int, label: int) -> None:
        self.random, self.left = stream(seed, SPLIT, label), np.empty(0)

    def next(self, count: int) -> NDArray[np.float64]:
        blocks = max(0, -(-(count - len(self.left)) // STRATUM))
        drawn = self.random.random((blocks, STRATUM + 1))
        ranks = np.argsort(np.argsort(drawn[:, 1:], axis=1), axis=1)
        found = np.concatenate([self.left, ((ranks + drawn[:, :1]) / STRATUM).ravel()])
        self.left = found[count:]
        return found[:count]


def assigner(rows: Rows, split: Split, notes: list[str], labels: Labels) -> Assign:
    """How the rows are divided; `rows` are read once before that where they are put in the order of a column."""
    edges = np.cumsum(split.shares)[:2]
    if split.time:
        return _by_time(rows, split, notes, labels)
    if split.group:
        return lambda chunk, labels, passed: by_group(split, chunk)
    if not split.by:
        parts = at_random(split)
        return lambda chunk, labels, passed: parts(labels)
    counts: dict[str, int] = {}
    total = 0
    for chunk in rows():
        if split.by in chunk.column_names:
            texts, places = texts_of(chunk[split.by])
            for place, n in enumerate(np.bincount(places, minlength=len(texts)).tolist()):
                if n:
                    counts[texts[place] or ""] = counts.get(texts[place] or "", 0) + n
        elif split.by != ROW_ORDER:
            problem = missing_column(split.by, chunk.column_names, what="--split-by column")
            raise DataError(f"{problem} (or `row`, the file's order)")
        total += len(chunk)
    if not counts:
        bounds = order_bounds(split, total)
        return lambda chunk, labels, passed: np.searchsorted(
            bounds, np.arange(passed, passed + len(chunk)), side="right"
        )
    part_of = _parts_by_value(counts, edges, split.by, notes)

    def by_value(chunk: pa.Table, labels: NDArray[np.uint8], passed: int) -> NDArray[np.int64]:
        texts, places = texts_of(chunk[split.by])
        return np.array([part_of.get(text or "", 0) for text in texts])[places]

    return by_value


def _by_time(rows: Rows, split: Split, notes: list[str], labels: Labels) -> Assign:
    """`assigner` in the order of times, rows of one time in one part and rows without a time first of all."""
    seen = _counted(rows, split.by, labels)
    moments, counts = seconds(list(seen), split.time), np.array(list(seen.values()))
    parts = _parts_in_order(np.nan_to_num(moments, nan=-np.inf), counts[:, 0], split.shares)
    judged = [part for part, share in enumerate(split.shares) if share]
    found = {part: counts[parts == part].sum(axis=0) for part in judged}
    no_use = [PARTS[part] for part, (total, positives) in found.items() if not 0 < positives < total]
    if no_use:
        notes.append(
            f"column '{split.by}' is a time, but in its order the {no_use[0]} part would lack one of the labels: rows "
            f"are split at random (--split-by {split.by}: by it all the same)"
        )
        at_once = at_random(split)
        return lambda chunk, labels, passed: at_once(labels)
    first, last = (day_of(float(moment)) for moment in (np.nanmin(moments), np.nanmax(moments)))
    shares = ", ".join(f"{share:.0%} {PARTS[part]}" for part, share in enumerate(split.shares) if share)
    notes.append(
        f"column '{split.by}' is a time, {words_of(split.time)}, from {first} to {last}: rows are split in its order, "
        f"{shares} (--split-by none: at random)"
    )
    part_of = dict(zip(seen, parts.tolist(), strict=True))

    def by_value(chunk: pa.Table, labels: NDArray[np.uint8], passed: int) -> NDArray[np.int64]:
        texts, places = texts_of(chunk[split.by])
        return np.array([part_of.get(text, 0) for text in texts])[places]

    return by_value


def _counted(rows: Rows, name: str, labels: Labels) -> dict[str | None, NDArray[np.float64]]:
    """How many rows have each text of a column, and how many of them are positive."""
    seen: dict[str | None, NDArray[np.float64]] = {}
    passed = 0
    for chunk in rows():
        texts, places = texts_of(chunk[name])
        counts = [np.bincount(places, weights=of, minlength=len(texts)) for of in (None, labels(chunk, passed))]
        for text, *own in zip(texts, *counts, strict=True):
            if own[0]:
                seen[text] = np.array(own) + seen.get(text, 0.0)
        passed += len(chunk)
    return seen


def _parts_in_order(
    moments: NDArray[np.float64], counts: NDArray[np.float64], shares: tuple[float, float, float]
) -> NDArray[np.int64]:
    """The part of each moment, by the share of rows that have an earlier one."""
    _, own = np.unique(moments, return_inverse=True)
    rows = np.bincount(own, weights=counts)
    before = (np.cumsum(rows) - rows) / rows.sum()
    return np.asarray(np.searchsorted(np.cumsum(shares)[:2], before + 1e-9, side="right")[own])


def by_group(split: Split, chunk: pa.Table) -> NDArray[np.int64]:
    """The part of each row by a hash of its group, so that no list of groups is kept."""
    for name in split.group:
        if name not in chunk.column_names:
            raise DataError(missing_column(name, chunk.column_names, what="--split-group column"))
    numbers = mixed([column_hashes(chunk[name]) for name in split.group], split.seed)
    return np.searchsorted(np.cumsum(split.shares)[:2], numbers / 2.0**64, side="right")


def in_order_of(values: Collection[str], time: str = "") -> list[str]:
    """Values in the order of time, written as `time` says, if it says so; or as texts where they are no times."""
    if time:
        named = list(values)
        moments = np.nan_to_num(seconds(named, time), nan=-np.inf)
        return [named[place] for place in np.argsort(moments, kind="stable")]
    return _in_order(values) or sorted(values)


def _in_order(values: Collection[str]) -> list[str]:
    """Numbers, or dates and times as ISO 8601 has them, in their order, an empty one first; none if they are neither.

    >>> _in_order(["10", "9"]), _in_order(["2024-02", "2024-01-31 10:00:00"]), _in_order(["Mon", "Tue"])
    (['9', '10'], ['2024-01-31 10:00:00', '2024-02'], [])
    """
    for moment in (float, _moment):
        try:
            return sorted(values, key=lambda value, of=moment: of(value) if value else -math.inf)  # type: ignore[misc]
        except ValueError:
            continue
    return []


def _moment(text: str) -> float:
    """Seconds of a date or a time; a month begins with its first day, and what names no zone is in UTC."""
    found = moment_of(text) or datetime.fromisoformat(f"{text}-01" if re.fullmatch(r"\d{4}-\d{2}", text) else text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _parts_by_value(counts: dict[str, int], edges: NDArray[np.float64], by: str, notes: list[str]) -> dict[str, int]:
    """Values named after the parts name them; others are put in order and cut where the shares say."""
    if set(counts) <= set(PARTS):
        return {value: PARTS.index(value) for value in counts}
    ordered = in_order_of(counts)
    if not _in_order(counts):
        notes.append(
            f"--split-by {by}: put in order as text, from '{ordered[0]}' to '{ordered[-1]}'; is that time's order?"
        )
    before = np.cumsum([0, *(counts[value] for value in ordered)])[:-1] / sum(counts.values())
    return dict(zip(ordered, np.searchsorted(edges, before + 1e-9, side="right").tolist(), strict=True))
