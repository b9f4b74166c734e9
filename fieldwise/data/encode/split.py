"""Which part a row goes to: at random, in the order of a column or of the rows, or by group."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, DataError, missing_column
from fieldwise.data.dataset import PARTS
from fieldwise.data.draws import SPLIT, skip, stream
from fieldwise.data.history.history import column_hashes, mixed
from fieldwise.data.read.moments import day_of, moment_of, seconds, words_of
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import ROW_ORDER

Rows = Callable[[], Iterator[pa.Table]]
# From a chunk, its labels and the number of rows before it to the part number of each of its rows.
Assign = Callable[[pa.Table, NDArray[np.uint8], int], NDArray[np.int64]]
# Rows of one label that are drawn together: each such block has its share in every part.
STRATUM = 20


@dataclass(frozen=True)
class Split:
    """Which part a row goes to: at random by `shares`, or in the order of a column `by` (`row`: file order).

    At random, each label is drawn by itself. With `group`, rows that have the same values in these columns go to the
    same part. `time` says how the times in `by` are written where the user did not name the column: then rows are split
    at random if their order leaves a part without both labels.
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


def at_random(split: Split, before: tuple[int, int] = (0, 0)) -> Callable[[NDArray[np.uint8]], NDArray[np.int64]]:
    """A function that gives the part numbers of the next rows by their labels; where the rows are cut does not matter.

    Both labels are drawn apart, block after block, so that all parts have the same rate of positives: what few of them
    say of a part would else be chance. `before` are the rows of each label that came before.
    """
    edges = np.cumsum(split.shares)[:2]
    strata = [_Stratum(split.seed, label, passed) for label, passed in enumerate(before)]

    def parts(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
        found = np.empty(len(labels), dtype=np.int64)
        for label, stratum in enumerate(strata):
            own = labels == label
            found[own] = np.searchsorted(edges, stratum.next(int(own.sum())), side="right")
        return found

    return parts


class _Stratum:
    """Numbers in [0, 1) for the rows of one label: uniform, and in each block of rows evenly spaced in random order."""

    def __init__(self, seed: int, label: int, passed: int = 0) -> None:
        self.random, self.left = stream(seed, SPLIT, label), np.empty(0)
        blocks, rows = divmod(passed, STRATUM)
        skip(self.random, blocks * (STRATUM + 1))
        self.next(rows)

    def next(self, count: int) -> NDArray[np.float64]:
        blocks = max(0, -(-(count - len(self.left)) // STRATUM))
        drawn = self.random.random((blocks, STRATUM + 1))
        ranks = np.argsort(np.argsort(drawn[:, 1:], axis=1), axis=1)
        found = np.concatenate([self.left, ((ranks + drawn[:, :1]) / STRATUM).ravel()])
        self.left = found[count:]
        return found[:count]


class Survey:
    """What must be known of all rows before any of them has a part; that of shards is joined in their order."""

    def __init__(self) -> None:
        self.labels = [0, 0]
        # How many rows have each value of the column that they are split by, and how many of them are positive.
        self.values: dict[str | None, list[int]] = {}

    @property
    def rows(self) -> int:
        return sum(self.labels)

    def add(self, split: Split, chunk: pa.Table, labels: NDArray[np.uint8]) -> None:
        """Counts a chunk."""
        positives = int(labels.sum())
        self.join([len(labels) - positives, positives], self._counted(split, chunk, labels))

    def join(self, labels: Sequence[int], values: Mapping[str | None, Sequence[int]]) -> None:
        """Counts the rows of the survey that comes next."""
        self.labels = [own + more for own, more in zip(self.labels, labels, strict=True)]
        for value, (rows, positives) in values.items():
            before = self.values.get(value, (0, 0))
            self.values[value] = [before[0] + rows, before[1] + positives]

    def _counted(self, split: Split, chunk: pa.Table, labels: NDArray[np.uint8]) -> dict[str | None, list[int]]:
        if not split.by or split.is_order_of(chunk):
            return {}
        if split.by not in chunk.column_names:
            problem = missing_column(split.by, chunk.column_names, what="--split-by column")
            raise DataError(f"{problem} (or `row`, the file's order)")
        texts, places = texts_of(chunk[split.by])
        counts = [np.bincount(places, weights=of, minlength=len(texts)).astype(np.int64) for of in (None, labels)]
        return {text: own for text, *own in zip(texts, *(of.tolist() for of in counts), strict=True) if own[0]}


@dataclass(frozen=True)
class Parting:
    """How rows are divided, known before the first of them has a part: by value, by place, or else as `split` says."""

    split: Split
    by_value: Mapping[str | None, int] | None = None
    bounds: NDArray[np.float64] | None = None

    @classmethod
    def after(cls, survey: Survey, split: Split, notes: list[str]) -> Parting:
        """The parting of rows that were surveyed, if the split is in an order."""
        if split.time:
            return cls._in_time(survey, split, notes)
        if not split.by:
            return cls(split)
        if not survey.values:
            return cls(split, bounds=order_bounds(split, survey.rows))
        counts: dict[str, int] = {}
        for value, (rows, _) in survey.values.items():
            counts[value or ""] = counts.get(value or "", 0) + rows
        found = _parts_by_value(counts, np.cumsum(split.shares)[:2], split.by, notes)
        return cls(split, by_value={value or None: part for value, part in found.items()})

    @classmethod
    def _in_time(cls, survey: Survey, split: Split, notes: list[str]) -> Parting:
        """In the order of times, rows of one time in one part and rows without a time first of all."""
        seen, counts = list(survey.values), np.array(list(survey.values.values()), dtype=np.float64)
        moments = seconds(seen, split.time)
        parts = _parts_in_order(np.nan_to_num(moments, nan=-np.inf), counts[:, 0], split.shares)
        judged = [part for part, share in enumerate(split.shares) if share]
        found = {part: counts[parts == part].sum(axis=0) for part in judged}
        no_use = [PARTS[part] for part, (total, positives) in found.items() if not 0 < positives < total]
        if no_use:
            notes.append(
                f"column '{split.by}' is a time, but in its order the {no_use[0]} part would lack one of the labels: "
                f"rows are split at random (--split-by {split.by}: by it all the same)"
            )
            return cls(split)
        first, last = (day_of(float(moment)) for moment in (np.nanmin(moments), np.nanmax(moments)))
        shares = ", ".join(f"{share:.0%} {PARTS[part]}" for part, share in enumerate(split.shares) if share)
        notes.append(
            f"column '{split.by}' is a time, {words_of(split.time)}, from {first} to {last}: rows are split in its "
            f"order, {shares} (--split-by none: at random)"
        )
        return cls(split, by_value=dict(zip(seen, parts.tolist(), strict=True)))

    def begin(self, before: tuple[int, int] = (0, 0)) -> Assign:
        """How rows are divided that come behind these numbers of rows of each label."""
        if self.by_value is not None:
            return self._by_value
        if self.bounds is not None:
            return self._by_place
        if self.split.group:
            return lambda chunk, labels, passed: by_group(self.split, chunk)
        parts = at_random(self.split, before)
        return lambda chunk, labels, passed: parts(labels)

    def _by_value(self, chunk: pa.Table, labels: NDArray[np.uint8], passed: int) -> NDArray[np.int64]:
        assert self.by_value is not None
        texts, places = texts_of(chunk[self.split.by])
        return np.array([self.by_value.get(text or None, 0) for text in texts])[places]

    def _by_place(self, chunk: pa.Table, labels: NDArray[np.uint8], passed: int) -> NDArray[np.int64]:
        assert self.bounds is not None
        return np.searchsorted(self.bounds, np.arange(passed, passed + len(chunk)), side="right")


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
