"""What a recipe says: how raw public files are written, what becomes of their columns, and how they are split."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.data.read.delimited import Text
from fieldwise.data.schema import Field, Schema

Join = Callable[[pa.Table], pa.Table]
COMMAS = Text()


@dataclass(frozen=True)
class Derived:
    """A column made of another one, cell by cell (of its first `cut` characters, if set): integers, or `text`."""

    name: str
    of: str
    make: Callable[[str], int | str | None]
    cut: int = 0
    text: bool = False

    def value(self, text: str | None) -> int | str | None:
        """What is made of one cell; nothing of an empty one."""
        return self.make(text[: self.cut] if self.cut else text) if text else None

    def column(self, table: pa.Table) -> pa.Array:
        """The column of a table that has the one it is made of; each distinct text is looked at once."""
        cells = pc.cast(table[self.of].combine_chunks(), pa.string())
        cells = (pc.utf8_slice_codeunits(cells, 0, self.cut) if self.cut else cells).dictionary_encode()
        values = [self.value(text) for text in cells.dictionary.to_pylist()]
        # A type of its own, because a chunk may have missing values alone.
        made = pa.array(values, pa.string() if self.text else pa.int64())
        return made.take(cells.indices)


@dataclass(frozen=True)
class Recipe:
    """One public data set, from the raw files as their owners publish them to fields, parts and thresholds.

    `layouts` are the columns that a raw file may have: without a `header` they are distinguished by their number, with
    one each of their names must be there. `kind` says libsvm or libffm instead, where fields are inferred. `cells` are
    patterns of the first row's cells, so that a wrong file is known at once. `parts` are patterns of file names;
    without them all files are training rows to split. `join` looks at what lies beside a file and gives what it adds
    to its rows, from the columns `joined`. `balance` drops negatives, file by file, until both classes weigh the same.
    `rows` are the counts of the complete files: of a part, or of a file of that name.
    """

    name: str
    title: str
    link: str
    terms: str
    files: str
    label: str = "label"
    layouts: tuple[tuple[str, ...], ...] = ()
    text: Text = COMMAS
    header: bool = True
    kind: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    derived: tuple[Derived, ...] = ()
    join: Callable[[Path], Join | None] | None = None
    joined: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    aside: str = ""
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    by: str = ""
    balance: bool = False
    gbdt_leaves: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema | None:
        """The fields as written down; None where they are inferred from the rows."""
        if not self.fields:
            return None
        return Schema(self.label, self.fields, gbdt_leaves=self.gbdt_leaves, recipe=self.name)

    def part_of(self, path: Path) -> str:
        """The part that a file belongs to by its name; nothing where it is none of them."""
        if not self.parts:
            return "train"
        return next((part for part, pattern in self.parts.items() if re.fullmatch(pattern, path.name)), "")

    def with_derived(self, table: pa.Table) -> pa.Table:
        """The table with the derived columns that it lacks and has the cells for."""
        for one in self.derived:
            if one.name not in table.column_names and one.of in table.column_names:
                table = table.append_column(one.name, one.column(table))
        return table

    def needed(self, columns: Sequence[str]) -> list[str]:
        """The raw columns that these columns are made of."""
        made = {one.name: one.of for one in self.derived}
        wanted = [name for column in columns for name in (column, made.get(column, column))]
        return list(dict.fromkeys([*wanted, *self.joined]))

    def given(self, columns: Sequence[str], present: Collection[str]) -> list[str]:
        """The columns to take from rows that have those in `present`: derived ones only where they are there."""
        made = {one.name: one.of for one in self.derived}
        return list(dict.fromkeys(n if n in present else made.get(n, n) for n in columns))

    def facts(self) -> dict[str, Any]:
        """What `fieldwise recipes` shows."""
        return {
            "name": self.name,
            "title": self.title,
            "link": self.link,
            "terms": self.terms,
            "files": self.files,
            "rows": dict(self.rows),
            "label": self.label,
            "fields": [one.name for one in self.fields],
            "derived": {one.name: one.of for one in self.derived},
            "split": {"shares": list(self.shares), "by": self.by, "files": dict(self.parts)},
            "balance": self.balance,
            "gbdt_leaves": self.gbdt_leaves,
            "remarks": list(self.remarks),
        }


def fields(names: str, **settings: Any) -> tuple[Field, ...]:
    """Fields that are alike.

    >>> [one.name for one in fields("site app", min_count=20)]
    ['site', 'app']
    """
    return tuple(Field(name, **settings) for name in names.split())
