"""Staging in shards: the pieces of the files, each by itself, the same rows in the same parts as one after another.

Parts are drawn by what came before a row. So rows are surveyed first, a piece at a time: how many of each label, and
of each value of the column that they are split by. Then every piece knows where it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.engine import Engine, map_once
from fieldwise.data.encode.pieces import FileRows, Piece, cut
from fieldwise.data.encode.split import Assign, Parting, Rows, Survey, by_group
from fieldwise.data.encode.stage import STAGED_PARTS, Staged, Stager, Start
from fieldwise.data.encode.staged import Progress

# Where the results of pieces are, under the staged rows.
FOLDER = "shards"


class ShardStager:
    """Stages the rows of files, as a stager does that reads them all."""

    def __init__(self, stager: Stager, sources: Mapping[str, Rows], engine: Engine) -> None:
        self.stager, self.engine = stager, engine
        self.sources = {name: rows for name, rows in sources.items() if isinstance(rows, FileRows)}
        if len(self.sources) < len(sources):
            raise ConfigError("a cluster reads files: rows that come from elsewhere are prepared on one machine")
        self.divides = stager.split.divides(sources)
        self.kept = stager.folder / FOLDER

    def stage(self, notes: list[str], progress: Progress) -> Staged:
        """Stages all pieces; those that were staged before a kill are only counted."""
        for source, rows in self.sources.items():
            rows.check()
            self._check_columns(source, rows)
        pieces = self._pieces()
        starts, parting = self._surveyed(pieces, notes, progress)
        work = _Staging(self.stager, self.sources, parting)
        staged, passed = Staged(), 0
        found = map_once(self.engine, self.kept / "staged", work, _zipped(pieces, starts))
        for piece, (one, known) in zip(pieces, found, strict=True):
            rows = sum(entry["read"] for entry in one["entries"])
            staged.entries += one["entries"]
            staged.kept += rows if known else 0
            passed += rows
            self.sources[piece.source].take(piece, one["noticed"])
            self.stager.levels.join(one["levels"])
            progress("reading", passed)
        staged.levels = tuple(self.stager.levels.blocks)
        self.stager.check(staged)
        return staged

    def _check_columns(self, source: str, rows: FileRows) -> None:
        """Refuses columns that are missing, as the first chunk would be."""
        empty = rows.schema(rows.files[0]).empty_table()
        labels, _ = self.stager.checked(empty, 0, source)
        if source == "train" and self.divides:
            Survey().add(self.stager.split, empty, labels)
            by_group(self.stager.split, empty) if self.stager.split.group else None

    def _pieces(self) -> list[Piece]:
        """The pieces of all files, in the order of their rows; all of their columns have the same types."""
        pieces: list[Piece] = []
        files = [(source, path) for source, rows in self.sources.items() for path in rows.files]
        looks = self.engine.map(partial(_look, self.stager, self.sources), files)
        for (source, path), (types, blocks) in zip(files, looks, strict=True):
            first = self.stager.types.setdefault("train", types)
            for one, other in zip(first, types, strict=True):
                if one != other:
                    raise ConfigError(
                        f"on a cluster a column has one type in all files, found {one.type} and {other.type} in "
                        f"'{one.name}' ({files[0][1]}, {path}); write them alike, or prepare them on one machine"
                    )
            pieces += [Piece(len(pieces) + number, source, path, some) for number, some in enumerate(cut(blocks))]
        # All parts have the types of the first rows.
        self.stager.types = dict.fromkeys(STAGED_PARTS, self.stager.types["train"])
        return pieces

    def _surveyed(
        self, pieces: Sequence[Piece], notes: list[str], progress: Progress
    ) -> tuple[list[Start], Parting | None]:
        """Where each piece begins, and how training rows are divided, if they are."""
        split, taken = self.stager.split, self.stager.taken
        drawn = self.divides and not split.group
        if not (drawn or taken.keeps_order or self.stager.keep_negatives < 1):
            starts = [Start(piece.first_file) for piece in pieces]
            return starts, Parting(split) if self.divides else None
        work, survey, labels = _Surveying(self.stager, self.sources, self.divides), Survey(), []
        for piece, (one, _) in zip(pieces, map_once(self.engine, self.kept / "survey", work, pieces), strict=True):
            labels.append((int(one["labels"][0]), int(one["labels"][1])))
            progress("counting", sum(map(sum, labels)))
            if piece.source == "train":
                survey.join(one["labels"], {value: counts for value, *counts in one["values"]})
        parting = Parting.after(survey, split, notes) if self.divides else None
        starts = _starts(pieces, labels)
        if self.stager.keep_negatives < 1:
            starts = self._with_training(pieces, starts, parting)
        return starts, parting

    def _with_training(self, pieces: Sequence[Piece], starts: Sequence[Start], parting: Parting | None) -> list[Start]:
        """The starts with the training rows before each piece, for the draw of those that are not kept."""
        work = _Training(self.stager, self.sources, parting)
        found = [one for one, _ in map_once(self.engine, self.kept / "training", work, _zipped(pieces, starts))]
        before = accumulate(found, initial=0)
        return [
            Start(start.number, start.before, start.labels, passed)
            for start, passed in zip(starts, before, strict=False)
        ]


def _zipped(pieces: Sequence[Piece], starts: Sequence[Start]) -> list[tuple[Piece, Start]]:
    return list(zip(pieces, starts, strict=True))


def _starts(pieces: Sequence[Piece], labels: Sequence[tuple[int, int]]) -> list[Start]:
    """Where pieces begin that have so many rows of each label."""
    found: list[Start] = []
    all_rows, source, before, own = 0, "", 0, (0, 0)
    for piece, (negatives, positives) in zip(pieces, labels, strict=True):
        if piece.source != source:
            source, before, own = piece.source, all_rows, (0, 0)
        found.append(Start(piece.first_file, before, own))
        own = own[0] + negatives, own[1] + positives
        all_rows += negatives + positives
    return found


class _Look(NamedTuple):
    """The types that a file's columns are staged in, and in how many blocks it can be read."""

    types: pa.Schema
    blocks: int


def _look(stager: Stager, sources: Mapping[str, FileRows], file: tuple[str, Path]) -> _Look:
    source, path = file
    rows = sources[source]
    with rows.reading():
        return _Look(stager.plain_types(rows.schema(path).empty_table()), rows.blocks(path))


@dataclass(frozen=True)
class _Surveying:
    """Piece -> its rows of each label, and where they are divided, the values of the column that says how."""

    stager: Stager
    sources: Mapping[str, FileRows]
    divides: bool

    def __call__(self, piece: Piece) -> dict[str, Any]:
        split, survey, passed, rows = self.stager.split, Survey(), 0, self.sources[piece.source]
        with rows.reading():
            for chunk in _needed(self.stager, rows, piece):
                labels = self.stager.labels(chunk, passed, piece.source)
                if piece.source == "train" and self.divides:
                    survey.add(split, chunk, labels)
                else:
                    survey.join([int((labels == 0).sum()), int(labels.sum())], {})
                passed += len(chunk)
        return {"labels": survey.labels, "values": [[value, *counts] for value, counts in survey.values.items()]}


@dataclass(frozen=True)
class _Training:
    """Piece and its start -> how many of its rows are training rows, kept or not."""

    stager: Stager
    sources: Mapping[str, FileRows]
    parting: Parting | None

    def __call__(self, work: tuple[Piece, Start]) -> int:
        (piece, start), found = work, 0
        assign, passed, rows = _assign(self.parting, piece, start), sum(start.labels), self.sources[piece.source]
        with rows.reading():
            for chunk in _needed(self.stager, rows, piece):
                labels = self.stager.labels(chunk, passed, piece.source)
                if assign is None:
                    found += len(chunk) if piece.source == "train" else 0
                else:
                    found += int((assign(chunk, labels, passed) == 0).sum())
                passed += len(chunk)
        return found


def _needed(stager: Stager, rows: FileRows, piece: Piece) -> Iterator[pa.Table]:
    """A piece's chunks of the columns alone that say which part a row goes to."""
    there = frozenset(rows.schema(piece.path).names)
    wanted = dict.fromkeys([stager.taken.label, stager.split.by, *stager.split.group])
    return rows.piece(piece, [name for name in wanted if name in there])


def _assign(parting: Parting | None, piece: Piece, start: Start) -> Assign | None:
    """How the rows of a piece are divided, if they are."""
    return parting.begin(start.labels) if parting and piece.source == "train" else None


@dataclass(frozen=True)
class _Staging:
    """Piece and its start -> its entries of the journal, its levels, and what was noticed while it was read."""

    stager: Stager
    sources: Mapping[str, FileRows]
    parting: Parting | None

    def __call__(self, work: tuple[Piece, Start]) -> dict[str, Any]:
        piece, start = work
        # What draws and counts begins anew for each piece.
        own, rows = self.stager.anew(), self.sources[piece.source]
        assign = _assign(self.parting, piece, start)
        with rows.reading():
            entries = [own.write(chunk) for chunk in own.chunks(piece.source, rows.piece(piece), start, assign)]
        return {"entries": entries, "levels": own.levels.state, "noticed": rows.noticed(piece)}
