"""Raw rows -> staged parts: labels checked, each row in its part, chunk after chunk by several threads.

A journal says which chunks are done. A run that starts again after a kill reads them once more, which costs little,
and writes only the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.documents import read_journal
from fieldwise.config.errors import ConfigError, DataError, missing_column, unknown
from fieldwise.data.dataset import PARTS, Level, Tally
from fieldwise.data.draws import NEGATIVES, skip, stream
from fieldwise.data.encode.levels import Levels
from fieldwise.data.encode.split import Assign, Parting, Rows, Split, Survey, order_bounds
from fieldwise.data.encode.split_staged import cut_in_order, positives_of
from fieldwise.data.encode.staged import LABEL, ROW, WEIGHT, Progress, staged_file, value_type, write_staged
from fieldwise.data.kinds.past import PastField
from fieldwise.data.read.formats import is_list, text_of
from fieldwise.data.read.labels import ZERO_ONE, Classes, read_labels, read_weights
from fieldwise.data.read.parallel import in_order
from fieldwise.data.read.streams import chunk_rows
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import ROW_ORDER, HistorySettings

DROPPED = "dropped"
JOURNAL = "journal.jsonl"
STAGED_PARTS = (*PARTS, DROPPED)
TEXT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Taken:
    """What is taken from the rows: label, weight and columns; all columns but those to `drop` where none are named."""

    label: str
    weight: str
    columns: list[str] | None
    drop: Collection[str]
    history: HistorySettings
    classes: Classes = ZERO_ONE
    log_fields: Sequence[PastField] = ()

    @property
    def past_columns(self) -> list[str]:
        """The columns that are needed of every row, for what later rows see of it."""
        return [*self.history.columns_needed, *(name for field in self.log_fields for name in field.columns)]

    @property
    def keeps_order(self) -> bool:
        """Whether the order of the rows is the time of what they see."""
        return ROW_ORDER in (self.history.time, *(field.time for field in self.log_fields))

    @property
    def counts_rows(self) -> bool:
        return bool(self.history.keys or self.log_fields)

    def names(self, chunk: pa.Table) -> list[str]:
        others = {self.label, self.weight, *self.drop}
        found = self.columns or [name for name in chunk.column_names if name not in others]
        return list(dict.fromkeys([*found, *self.past_columns]))


@dataclass
class Staged:
    """What was staged: the rows and the positives of each part, and how many rows were there from before."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    kept: int = 0
    levels: tuple[Level, ...] = ()

    @property
    def tally(self) -> Tally:
        found = {part: [entry["parts"].get(part, (0, 0)) for entry in self.entries] for part in STAGED_PARTS}
        sums = {part: [sum(counts) for counts in zip(*own, strict=True)] for part, own in found.items()}
        there = {part: own for part, own in sums.items() if any(own)}
        return Tally(
            {part: rows for part, (rows, _) in there.items()},
            {part: own[1] for part, own in there.items()},
            self.levels,
        )


@dataclass(frozen=True)
class Start:
    """Where rows begin: the number of their first staged file; the rows of the sources before theirs; and the rows
    of theirs before them, of each label, and how many of these are training rows."""

    number: int = 0
    before: int = 0
    labels: tuple[int, int] = (0, 0)
    training: int = 0


@dataclass(frozen=True)
class _Chunk:
    """Rows to be staged: their number in order, where they come from, and the part of each."""

    number: int
    rows: pa.Table
    parts: NDArray[np.int64]
    types: Mapping[str, pa.Schema]
    source: str


class Stager:
    """Stages the rows of all sources, or of a shard of them, into a folder."""

    def __init__(self, folder: Path, taken: Taken, split: Split, keep_negatives: float, names: Mapping[str, str]):
        self.folder, self.taken, self.split, self.names = folder, taken, split, names
        self.keep_negatives = keep_negatives
        # One stream for all rows, so that chunks do not matter.
        self.random = stream(split.seed, NEGATIVES)
        self.types: dict[str, pa.Schema] = {}
        self.levels = Levels(split)
        # Whether rows are divided when all of them are staged.
        self.cuts = False

    def anew(self) -> Stager:
        """The same before any row."""
        other = Stager(self.folder, self.taken, self.split, self.keep_negatives, self.names)
        other.types = dict(self.types)
        return other

    def stage(self, sources: Mapping[str, Rows], notes: list[str], progress: Progress) -> Staged:
        """Stages all rows; chunks that the journal has are only passed over."""
        staged, path = Staged(), self.folder / JOURNAL
        passed, done = 0, read_journal(path)
        with path.open("a", encoding="utf-8") as journal:
            for entry in in_order(self.write, self._left(sources, done, staged, notes)):
                staged.entries.append(entry)
                journal.write(json.dumps(entry) + "\n")
                journal.flush()
                passed += entry["read"]
                progress("reading", staged.kept + passed)
        staged.levels = tuple(self.levels.blocks)
        if self.cuts:
            self._cut(staged)
        self.check(staged)
        return staged

    def _cut(self, staged: Staged) -> None:
        """Divides the training rows in their order, now that it is known how many there are."""
        own = [number for number, entry in enumerate(staged.entries) if entry["source"] == "train"]
        rows = [staged.entries[number]["read"] for number in own]
        cut_in_order(self.folder, zip(own, rows, strict=True), order_bounds(self.split, sum(rows)))
        for number in own:
            files = {part: staged_file(self.folder, part, number) for part in PARTS}
            found = {part: positives_of(file) for part, file in files.items() if file.exists()}
            staged.entries[number] = staged.entries[number] | {"parts": found}

    def _left(
        self, sources: Mapping[str, Rows], done: list[dict[str, Any]], staged: Staged, notes: list[str]
    ) -> Iterator[_Chunk]:
        """The chunks of all sources that are not staged yet; the others are noted."""
        number = before = 0
        for source, read in sources.items():
            assign = self._assign(read, notes) if source == "train" and self.split.divides(sources) else None
            first = before
            for chunk in self.chunks(source, read(), Start(number, first), assign):
                if number < len(done):
                    staged.entries.append(done[number])
                    staged.kept += len(chunk.rows)
                else:
                    yield chunk
                before += len(chunk.rows)
                number += 1

    def _assign(self, read: Rows, notes: list[str]) -> Assign:
        """How training rows are divided; they are read once before that where they are put in the order of a column."""
        if not self.split.by:
            return Parting(self.split).begin()
        # A reading of its own: bad rows would count twice if one began in the middle of another.
        first = next(read(), None)
        if first is None:
            return _all_training
        self.checked(first, 0, "train")
        # Which parts rows go to in their own order may be decided when all are there.
        self.cuts = self.split.is_order_of(first) and self.keep_negatives == 1
        if self.cuts:
            return _all_training
        survey, passed = Survey(), 0
        for each in read():
            survey.add(self.split, each, self.labels(each, passed))
            passed += len(each)
        return Parting.after(survey, self.split, notes).begin()

    def chunks(self, source: str, chunks: Iterator[pa.Table], start: Start, assign: Assign | None) -> Iterator[_Chunk]:
        """Rows of a source, checked, each in its part; `assign` is there where they are divided."""
        number, passed = start.number, sum(start.labels)
        skip(self.random, start.training)
        for chunk in _sliced(chunks):
            labels, weights = self.checked(chunk, passed, source)
            parts = assign(chunk, labels, passed) if assign else np.full(len(chunk), PARTS.index(source))
            if assign:
                self.levels.add(chunk, labels, passed, parts)
            self._drop(parts, labels)
            types = self._typed(chunk, parts)
            yield _Chunk(number, self._labelled(chunk, labels, weights, start.before + passed), parts, types, source)
            passed += len(chunk)
            number += 1

    def checked(self, chunk: pa.Table, passed: int, source: str) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Labels and weights of rows whose columns are all there."""
        taken, where = self.taken, self.names[source]
        names = taken.names(chunk)
        known = next(iter(self.types.values())).names if self.types else []
        there = frozenset(chunk.column_names)
        for name in (taken.label, *([taken.weight] if taken.weight else ()), *names, *known):
            if name not in there:
                one = len(chunk.column_names) == 1 and any(mark in chunk.column_names[0] for mark in ";\t|:, ")
                way_out = "; is that one column? --separator says what stands between cells" if one else ""
                raise DataError(f"{missing_column(name, chunk.column_names, 'there are')} ({where}){way_out}")
        for name in taken.drop if not self.types else ():
            if name not in chunk.column_names:
                raise ConfigError(f"--drop: {unknown('column', name, chunk.column_names)} ({where})")
        if not names:
            raise DataError(f"there is no column beside '{taken.label}' to predict it from ({where})")
        for name in names:
            if name in (LABEL, WEIGHT, ROW):
                raise DataError(f"the name '{name}' is taken by fieldwise itself; rename that column ({where})")
        labels = self.labels(chunk, passed, source)
        weighted = bool(taken.weight)
        weights = read_weights(chunk[taken.weight], taken.weight, passed, where) if weighted else np.empty(0, "f4")
        return labels, weights

    def labels(self, chunk: pa.Table, passed: int, source: str = "train") -> NDArray[np.uint8]:
        """The labels of a chunk, behind the rows of its source that have passed."""
        taken = self.taken
        return read_labels(chunk[taken.label], taken.label, passed, self.names[source], taken.classes)

    def _drop(self, parts: NDArray[np.int64], labels: NDArray[np.uint8]) -> None:
        """Moves the negatives that training does not keep into a part of their own: only a history counts them."""
        if self.keep_negatives < 1:
            training = np.flatnonzero(parts == 0)
            kept = (labels[training] > 0) | (self.random.random(len(training)) < self.keep_negatives)
            parts[training[~kept]] = STAGED_PARTS.index(DROPPED)

    def _typed(self, chunk: pa.Table, parts: NDArray[np.int64]) -> dict[str, pa.Schema]:
        """The types of each part's columns: those of its first rows, for all that follow."""
        found = self.plain_types(chunk)
        for place in np.flatnonzero(np.bincount(parts, minlength=len(STAGED_PARTS))):
            self.types.setdefault(STAGED_PARTS[place], found)
        return dict(self.types)

    def plain_types(self, chunk: pa.Table) -> pa.Schema:
        """The types that a chunk's columns would be staged in."""
        return pa.schema([(name, plain_type(chunk.schema.field(name).type)) for name in self.taken.names(chunk)])

    def _labelled(
        self, chunk: pa.Table, labels: NDArray[np.uint8], weights: NDArray[np.float32], first: int
    ) -> pa.Table:
        rows = chunk.select(self.taken.names(chunk)).append_column(LABEL, pa.array(labels))
        if self.taken.weight:
            rows = rows.append_column(WEIGHT, pa.array(weights))
        if self.taken.keeps_order:
            rows = rows.append_column(ROW, pa.array(np.arange(first, first + len(rows))))
        return rows

    def write(self, chunk: _Chunk) -> dict[str, Any]:
        """Writes the rows of each part; returns the journal's entry."""
        found = {}
        for place in np.flatnonzero(np.bincount(chunk.parts, minlength=len(STAGED_PARTS))).tolist():
            part, own = STAGED_PARTS[place], chunk.parts == place
            rows = chunk.rows if own.all() else chunk.rows.filter(pa.array(own))
            if part == DROPPED and not self.taken.counts_rows:
                continue
            columns = [_typed_column(rows, kind, self.names[chunk.source]) for kind in chunk.types[part]]
            names = chunk.types[part].names
            more = [name for name in rows.column_names if name in (LABEL, WEIGHT, ROW)]
            table = pa.table([*columns, *(rows[name] for name in more)], names=[*names, *more])
            write_staged(staged_file(self.folder, part, chunk.number), table)
            found[part] = len(rows), int(rows[LABEL].to_numpy().sum())
        return {"source": chunk.source, "read": len(chunk.rows), "parts": found}

    def check(self, staged: Staged) -> None:
        """Refuses staged rows that no model can learn from."""
        rows, positives = (found.get("train", 0) for found in (staged.tally.rows, staged.tally.positives))
        check_training(rows, positives, self.taken.label, self.names["train"])


def _all_training(chunk: pa.Table, labels: NDArray[np.uint8], passed: int) -> NDArray[np.int64]:
    return np.zeros(len(chunk), dtype=np.int64)


def check_training(rows: int, positives: int, label: str, where: str) -> None:
    """Refuses training rows that no model can learn from."""
    if not rows:
        raise DataError(f"there are no training rows: the file has none, or the split leaves none ({where})")
    if positives in (0, rows):
        raise DataError(
            f"label '{label}' is always {1 if positives else 0} in the {rows} training rows; "
            f"a model needs both 0 and 1 ({where})"
        )


def _sliced(chunks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """No chunk is larger than what a staged file holds."""
    for chunk in chunks:
        most = chunk_rows(chunk.num_columns)
        for first in range(0, len(chunk), most):
            yield chunk.slice(first, most)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """As what a column is staged without a change: numbers, booleans, texts, lists; the rest as text."""
    if is_list(kind):
        return pa.list_(pa.string())
    if pa.types.is_boolean(kind) or kind == pa.uint64():
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else TEXT


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in its plain type."""
    kind, wanted = column.type, plain_type(column.type)
    if is_list(kind):
        cells = column.to_pylist()
        lists = [None if cell is None else [text_of(member) for member in cell] for cell in cells]
        return pa.chunked_array([lists], wanted)
    if wanted != TEXT:
        return column.cast(wanted)
    if _is_text(value_type(kind)):
        return column.cast(pa.string()).dictionary_encode()
    return as_text(column).dictionary_encode()


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The cells of a column, none of which is a list, as they are spelt."""
    texts, places = texts_of(column)
    return pa.chunked_array([pa.array(texts, pa.string()).take(pa.array(places))])


def _typed_column(rows: pa.Table, kind: pa.Field, source: str) -> pa.ChunkedArray:
    """A column in the type that its part has."""
    column = _plain(rows[kind.name])
    if column.type == kind.type:
        return column
    found = value_type(column.type)
    try:
        texts = column.cast(found)
        return texts.cast(pa.string()).dictionary_encode() if kind.type == TEXT else texts.cast(kind.type)
    except pa.ArrowException:
        raise DataError(
            f"column '{kind.name}' must have one type in all files, found {value_type(kind.type)} and {found} "
            f"({source})"
        ) from None
