"""The rows of files as `prepare` reads them: all of them in turn, or a piece of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fieldwise.data.encode.pieces import FileRows, Piece
from fieldwise.data.encode.usable import usable
from fieldwise.data.read import delimited, formats
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.labels import Classes
from fieldwise.data.recipes.raw_columns import Reader


@dataclass(frozen=True)
class PlainRows(FileRows):
    """Rows of files whose endings say how they are written; `must` are columns that must be numbers."""

    files: list[Path]
    numbers: Collection[str]
    bad: BadRows
    label: str
    must: Collection[str]
    classes: Classes
    separator: str

    def __call__(self) -> Iterator[pa.Table]:
        for path, chunks in formats.read_each(self.files, None, self.numbers, self.bad):
            yield from self._usable(path, chunks)

    def _usable(self, path: Path, chunks: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return usable(self.bad, path, chunks, self.label, self.must, self.classes)

    def check(self) -> None:
        names = formats.column_names(self.files[0], bad=self.bad)
        for path in self.files[1:]:
            formats.check_alike(names, self.files[0], formats.column_names(path, bad=self.bad), path)

    def reading(self) -> AbstractContextManager[None]:
        return delimited.separated(self.separator)

    def schema(self, path: Path) -> pa.Schema:
        return formats.schema_of(path, self.bad)

    def blocks(self, path: Path) -> int:
        return formats.blocks_of(path, self.bad)

    def piece(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        # Which rows are skipped is said by all columns.
        wanted = None if self.bad.skip else columns
        chunks = formats.read_piece(piece.path, piece.blocks, wanted, self.numbers, self.bad)
        return self._usable(piece.path, chunks)

    def noticed(self, piece: Piece) -> dict[str, Any]:
        skipped = self.bad.found.get(piece.path)
        return {"skipped": asdict(skipped)} if skipped else {}

    def take(self, piece: Piece, noticed: dict[str, Any]) -> None:
        if "skipped" in noticed:
            self.bad.taken(piece.path, noticed["skipped"])


@dataclass(frozen=True)
class RecipeRows(FileRows):
    """Rows of files that a recipe reads."""

    reader: Reader
    files: list[Path]
    columns: list[str] | None

    def __call__(self) -> Iterator[pa.Table]:
        return self.reader.rows(self.files, self.columns)

    def check(self) -> None:
        self.reader.check(self.files, self.columns)

    def schema(self, path: Path) -> pa.Schema:
        return self.reader.schema(path, self.columns)

    def blocks(self, path: Path) -> int:
        return self.reader.blocks(path)

    def piece(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        wanted = self.columns if columns is None or self.reader.bad.skip else columns
        self.reader.counts.pop(piece.path, None)
        return self.reader.rows([piece.path], wanted, piece.blocks)

    def noticed(self, piece: Piece) -> dict[str, Any]:
        skipped, rows = self.reader.bad.found.get(piece.path), self.reader.counts.get(piece.path, 0)
        return ({"rows": rows} if rows else {}) | ({"skipped": asdict(skipped)} if skipped else {})

    def take(self, piece: Piece, noticed: dict[str, Any]) -> None:
        if "rows" in noticed:
            begun = bool(piece.blocks and piece.blocks.start)
            before = self.reader.counts.get(piece.path, 0) if begun else 0
            self.reader.counts[piece.path] = before + noticed["rows"]
        if "skipped" in noticed:
            self.reader.bad.taken(piece.path, noticed["skipped"])
