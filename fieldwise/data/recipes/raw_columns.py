"""The files of a recipe -> chunks of its columns: raw cells, what lies beside them, and what is derived."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.config.errors import DataError, missing_column
from fieldwise.data.draws import BALANCE, stream
from fieldwise.data.encode.usable import usable
from fieldwise.data.read import delimited, formats, line_blocks, streams
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.cells import Cells
from fieldwise.data.recipes import find
from fieldwise.data.recipes.recipe import Join, Recipe
from fieldwise.data.schema import Schema

# Rows that show whether a file is what the recipe takes it for; half of them must.
LOOKED_AT = 100


class Reader:
    """Reads raw files as a recipe says, and counts their rows.

    `label` and `numbers` are what `bad` looks at when it skips rows; without `numbers` the recipe's fields tell, or the
    files. With `balance`, negatives of a file are kept at the rate of its positives to its negatives, drawn by `seed`.
    """

    def __init__(
        self,
        recipe: Recipe,
        bad: BadRows | None = None,
        balance: bool = False,
        seed: int = 0,
        label: str = "",
        numbers: Collection[str] | None = None,
    ) -> None:
        self.recipe, self.bad, self.balance, self.seed = recipe, bad or BadRows(), balance, seed
        self.label = label or recipe.label
        self.numbers = recipe.schema.numbers if recipe.schema and numbers is None else numbers
        self.counts: dict[Path, int] = {}
        self._counted: dict[Path, tuple[int, int]] = {}
        self._joins: dict[tuple[Path, str], Join | None] = {}

    def columns(self, path: Path) -> list[str]:
        """All columns that rows of a file can have."""
        if self.recipe.kind:
            return formats.column_names(path, self.recipe.kind, self.bad)
        names = self._names(path)
        join = self._join(path)
        empty = pa.table({name: pa.array([], pa.string()) for name in names})
        return [str(name) for name in self.recipe.with_derived(join(empty) if join else empty).column_names]

    def schema(self, path: Path, columns: Sequence[str] | None) -> pa.Schema:
        """The columns that chunks of a file have, with their types."""
        names = self.columns(path) if self.recipe.kind else self._names(path)
        made = pa.table({name: pa.array([], pa.string()) for name in names})
        if not self.recipe.kind:
            join = self._join(path)
            made = self.recipe.with_derived(join(made) if join else made)
        return made.schema if columns is None else made.select(list(columns)).schema

    def blocks(self, path: Path) -> int:
        """In how many blocks a file can be read; 0 where it is read as a whole."""
        if self.recipe.kind or self.balance or not delimited.has_blocks(path, self.recipe.text, self.bad):
            return 0
        return line_blocks.block_count(path, self.recipe.header)

    def rows(
        self, paths: Sequence[Path], columns: Sequence[str] | None = None, blocks: range | None = None
    ) -> Iterator[pa.Table]:
        """Chunks of the columns, all where none are named, of the files in their order; or of some blocks of one."""
        for path, chunks in self._each(paths, columns, blocks):
            passed = 0
            for chunk in usable(self.bad, path, chunks, self.label, self.numbers or ()):
                passed += len(chunk)
                self.counts[path] = passed
                yield chunk if columns is None else chunk.select(list(columns))

    def _each(
        self, paths: Sequence[Path], columns: Sequence[str] | None, blocks: range | None
    ) -> Iterator[tuple[Path, Iterator[pa.Table]]]:
        if self.recipe.kind:
            yield from formats.read_each(paths, columns, self.numbers, self.bad, self.recipe.kind)
            return
        self.check(paths, columns)
        for path in paths:
            self.bad.start(path)
            yield path, self._read_one(path, columns, blocks)

    def check(self, paths: Sequence[Path], columns: Sequence[str] | None) -> None:
        """Refuses files that do not have the same columns, or lack some."""
        if self.recipe.kind:
            every = [formats.column_names(path, self.recipe.kind, self.bad) for path in paths]
            for path, names in zip(paths, every, strict=True):
                formats.check_alike(every[0], paths[0], names, path)
            return
        known = [self.columns(path) for path in paths]
        for path, names in zip(paths, known, strict=True):
            # Layouts may differ, as those of impressions and test rows do, but not in what is made of them.
            made = [[name for name in self._made if name in of] for of in (known[0], names)]
            formats.check_alike(made[0], paths[0], made[1], path)
            missing = [name for name in columns or () if name not in names]
            if missing:
                raise DataError(f"{missing_column(missing[0], names, 'there are')} ({path})")

    def _read_one(self, path: Path, columns: Sequence[str] | None, blocks: range | None) -> Iterator[pa.Table]:
        recipe, names = self.recipe, self._names(path)
        wanted = names if columns is None else [name for name in names if name in recipe.needed(columns)]
        text = recipe.text if recipe.header else replace(recipe.text, names=tuple(names))
        join = self._join(path)
        checked = False
        chunks = delimited.read(path, text, names, wanted, self.bad, blocks)
        for chunk in self._balanced(path, chunks) if self.balance else chunks:
            if not checked:
                self._check_cells(path, chunk)
                checked = True
            yield recipe.with_derived(join(chunk) if join else chunk)

    def _join(self, path: Path) -> Join | None:
        """What the files beside this one add to its rows; files of one folder and part share it."""
        place = (path.parent, self.recipe.part_of(path))
        if place not in self._joins:
            self._joins[place] = self.recipe.join(path) if self.recipe.join else None
        return self._joins[place]

    @property
    def _made(self) -> list[str]:
        """The columns that a file must give whatever its layout: the label and the fields."""
        return [self.label, *(field.name for field in self.recipe.fields)]

    def _names(self, path: Path) -> list[str]:
        """The raw columns of a file, which must be those of one of the recipe's layouts."""
        streams.check_file(path)
        recipe, first = self.recipe, self.recipe.layouts[0]
        cells = recipe.text.first_cells(path)
        if not recipe.header:
            for layout in recipe.layouts:
                if len(layout) == len(cells):
                    return list(layout)
            raise self._wrong(path, f"{len(first)} columns ({_brief(first)})", f"{len(cells)}", cells)
        missing = [name for name in recipe.layouts[-1] if name not in cells]
        if missing:
            raise self._wrong(path, f"a header with {_brief(first)}", f"no '{missing[0]}'", cells)
        return delimited.header(path, recipe.text)

    def _wrong(self, path: Path, expected: str, found: str, cells: Sequence[str]) -> DataError:
        between = {"\t": "tabs", ",": "commas"}.get(self.recipe.text.delimiter, f"'{self.recipe.text.delimiter}'")
        begins = self.recipe.text.delimiter.join(cells)[:60]
        return DataError(
            f"recipe '{self.recipe.name}' takes {self.recipe.files}: expected {expected} between {between}, "
            f"found {found} in the first line, {begins!r} ({path})"
        )

    def _check_cells(self, path: Path, chunk: pa.Table) -> None:
        """Refuses a file whose first cells are not what the recipe knows of them."""
        for name, pattern in self.recipe.cells.items():
            if name not in chunk.column_names:
                continue
            cells = [cell or "" for cell in chunk[name].slice(0, LOOKED_AT).to_pylist()]
            odd = [cell for cell in cells if not re.fullmatch(pattern, cell)]
            if 2 * len(odd) > len(cells):
                raise DataError(
                    f"recipe '{self.recipe.name}' takes {self.recipe.files}: expected cells like {pattern} in column "
                    f"'{name}', found {odd[0][:40]!r} ({path})"
                )

    def _balanced(self, path: Path, chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """All positives, and as many negatives in expectation; one random stream, so that chunks do not matter."""
        positives, rows = self._labels(path)
        rate = min(1.0, positives / max(1, rows - positives))
        random = stream(self.seed, BALANCE, zlib.crc32(path.name.encode()))
        for chunk in chunks:
            negative = pc.equal(chunk[self.recipe.label], "0").fill_null(False).to_numpy()
            yield chunk.filter(pa.array(~negative | (random.random(len(chunk)) < rate)))

    def notes(self, parts: Mapping[str, Sequence[Path]]) -> list[str]:
        """Whether the rows that were read are those of the complete published files, in one line where they are not."""
        found: dict[str, int] = {}
        paths = parts["train"] if not self.recipe.parts else [path for some in parts.values() for path in some]
        if not set(paths) <= set(self.counts):
            return []
        for path in paths:
            for name in (self.recipe.part_of(path), path.name.removesuffix(".gz")):
                found[name] = found.get(name, 0) + self._raw_rows(path)
        odd = [
            f"{name} {found[name]:,} of {expected:,}" if name in found else f"{name} none of {expected:,}"
            for name, expected in self.recipe.rows.items()
            if found.get(name) != expected
        ]
        way_out = "the published files have other counts; is this a sample, or cut off?"
        return [f"recipe {self.recipe.name}: found {', '.join(odd)}: {way_out}"] if odd else []

    def _raw_rows(self, path: Path) -> int:
        """The rows of a file as it lies there."""
        if self.balance:
            return self._labels(path)[1]
        skipped = self.bad.found.get(path)
        return self.counts.get(path, 0) + (skipped.rows if skipped else 0)

    def _labels(self, path: Path) -> tuple[int, int]:
        """Positives and rows of a file, counted once."""
        if path not in self._counted:
            self._counted[path] = count_labels(path, self.recipe.text.delimiter)
        return self._counted[path]


def count_labels(path: Path, delimiter: str) -> tuple[int, int]:
    """The lines that begin with a 1, and all lines; a pass over the bytes alone."""
    mark, end = f"\n1{delimiter}".encode(), b"\n"
    positives = rows = 0
    try:
        with streams.open_bytes(path) as file:
            while block := file.read(8 << 20):
                text = end + block
                # What lies across the edge of two blocks is found with the next one.
                positives += text.count(mark)
                rows += block.count(b"\n")
                end = (end + block)[-len(mark) + 1 :]
    except streams.UNREADABLE as error:
        raise streams.unreadable(path, error) from None
    return positives, rows + (not end.endswith(b"\n"))


def _brief(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 12 else f"{', '.join(names[:3])} ... {names[-1]}"


def rows_of(
    schema: Schema, path: Path, columns: Sequence[str] | None = None, numbers: Collection[str] = ()
) -> Iterator[pa.Table]:
    """Rows to predict or evaluate, read as those that the model was prepared from: by its recipe, or by the ending.

    A file that names all the fields itself, such as one that `predict --keep` wrote, is read as it is. `numbers` are
    columns that another model reads as numbers too.
    """
    numbers = {*schema.numbers, *numbers}
    if not schema.recipe or _is_plain(path, schema):
        return formats.read([path], columns and _there(schema, path, columns), numbers)
    return Reader(find(schema.recipe), label=schema.label, numbers=numbers).rows([path], columns)


def cells_of(schema: Schema, path: Path) -> Iterator[pa.Table | Cells]:
    """`rows_of` with the columns that the model reads, for the encoder alone: it takes cells as they lie in a file."""
    if schema.recipe:
        return rows_of(schema, path, schema.columns)
    return formats.read_cells(path, _there(schema, path, schema.columns), schema.numbers)


def _there(schema: Schema, path: Path, columns: Sequence[str]) -> list[str]:
    """The columns without those that the file lacks and rows may lack."""
    known = formats.column_names(path) if schema.optional else []
    return [name for name in columns if name in known or name not in schema.optional]


def columns_of(schema: Schema, path: Path) -> list[str]:
    """The columns of rows to predict or evaluate."""
    if not schema.recipe or _is_plain(path, schema):
        return formats.column_names(path)
    return Reader(find(schema.recipe)).columns(path)


def _is_plain(path: Path, schema: Schema) -> bool:
    try:
        return set(schema.columns) - schema.optional <= set(formats.column_names(path))
    except DataError:
        return False
