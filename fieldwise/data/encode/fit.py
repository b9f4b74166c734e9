"""Vocabularies, thresholds and the width of sets from staged training rows, counted by DuckDB out of memory."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import OddCell
from fieldwise.data.encode.encoder import Encoder, FieldCode, as_number, fit_vocabulary, grow, log_square
from fieldwise.data.encode.staged import LABEL, staged_files, staged_rows, staged_schema
from fieldwise.data.kinds.buckets import Histogram, fit_anchors, fit_thresholds
from fieldwise.data.read.formats import is_list, quoted, text_of
from fieldwise.data.schema import Field, Schema

Progress = Callable[[str, int], None]
MEMORY = "700MB"
# Texts that `text_of` may spell in another way.
RESPELT = "suffix(v, '.0') OR v IN ('True', 'False')"
# A statement costs by the columns of the file, whichever it counts: about as much for each as this many cells to count.
# So wide files are counted in groups of columns; and no group has more than this many cells and columns.
CELLS_A_COLUMN, GROUP_CELLS, GROUP_COLUMNS = 1_000, 4_000_000, 1_000


@dataclass(frozen=True)
class _Column:
    """A field's staged column: the field's number in the schema, DuckDB's expression for a cell, and its type."""

    number: int
    field: Field
    cell: str
    kind: pa.DataType

    @property
    def alike(self) -> tuple[str, str, int, bool]:
        """What columns that are counted together have in common."""
        field = self.field
        return field.kind, str(self.kind), field.min_count, bool(field.hash_buckets)


Group = Sequence[_Column]


@dataclass(frozen=True)
class _Rows:
    """The staged rows as DuckDB sees them: the connection, the file's rows and its label."""

    base: Any
    source: str
    label: str

    def count(self, group: Group) -> None:
        """Makes the table `counts`: what the cells of column k hold, in how many rows, and how many are positive.

        A set's members count once in each of its cells.
        """
        what = "unnest(list_distinct(cell))" if group[0].field.kind == "set" else "cell"
        cells = f"SELECT k, {what} AS v, label FROM ({self._cells(group)})"
        # One column is faster by its values alone.
        k, by = ("k", "k, v") if len(group) > 1 else ("0", "v")
        counts = f"SELECT {k} AS k, v, count(*) AS n, sum(label) AS p FROM ({cells}) GROUP BY {by}"
        self.base.execute(f"CREATE OR REPLACE TEMP TABLE counts AS {counts}")

    def widths(self, group: Group) -> list[int]:
        """The most members that a cell of each set has."""
        query = f"SELECT k, max(len(list_distinct(cell))) FROM ({self._cells(group)}) GROUP BY k"
        longest = dict(self.base.sql(query).fetchall())
        return [min(c.field.max_values, max(1, int(longest.get(k) or 1))) for k, c in enumerate(group)]

    def _cells(self, group: Group) -> str:
        """The cells of all columns, one column below the other; k is its place in the group."""
        cells = ", ".join(column.cell for column in group)
        k, cell = (f"unnest(range({len(group)}))", f"unnest([{cells}])") if len(group) > 1 else ("0", cells)
        return f"SELECT {k} AS k, {cell} AS cell, {self.label} AS label FROM {self.source}"


def fit_encoder(schema: Schema, staged: Path, progress: Progress, known: Encoder | None, threads: int) -> Encoder:
    """Vocabularies and thresholds from the staged training rows, or a known encoder's with what they add to it."""
    import duckdb

    table = staged_schema(staged)
    # Numbered columns, because DuckDB takes names that differ in case alone for one.
    numbered = ", ".join(f"c{number}" for number in range(len(table)))
    files = quoted(f"{glob.escape(str(staged))}/*.parquet")
    source = f"read_parquet({files}) AS staged({numbered})"
    places = {name: place for place, name in enumerate(table.names)}
    types = dict(zip(table.names, table.types, strict=True))
    columns = [_column(n, one, places[one.name], types[one.name]) for n, one in enumerate(schema.fields)]
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": MEMORY,
        "temp_directory": str(staged.parent),
        "preserve_insertion_order": False,
    }
    codes: dict[int, FieldCode] = {}
    with duckdb.connect(config=settings) as base:
        base.execute("SET parquet_metadata_cache = true")
        rows = _Rows(base, source, f"c{places[LABEL]}")
        for group in _groups(columns, sum(map(staged_rows, staged_files(staged))), len(table)):
            found = _grown(rows, group, known) if known else _fit(rows, group)
            codes |= {column.number: code for column, code in zip(group, found, strict=True)}
            progress("fitting", len(codes))
    return Encoder(schema, [codes[number] for number in range(len(columns))])


def _column(number: int, field: Field, place: int, kind: pa.DataType) -> _Column:
    name = f"c{place}"
    if field.kind == "set" and not is_list(kind):
        name, kind = f"string_split({name}::VARCHAR, {quoted(field.separator)})", pa.list_(pa.string())
    return _Column(number, field, name, kind)


def _groups(columns: Iterable[_Column], rows: int, width: int) -> Iterator[Group]:
    """Columns that are counted together; one alone where it has many more rows than the file has columns."""
    alike: dict[object, list[_Column]] = {}
    for column in columns:
        alike.setdefault(column.alike, []).append(column)
    most = max(1, min(GROUP_COLUMNS, min(GROUP_CELLS, CELLS_A_COLUMN * width) // max(1, rows)))
    for same in alike.values():
        for first in range(0, len(same), most):
            yield same[first : first + most]


def _fit(rows: _Rows, group: Group) -> list[FieldCode]:
    first = group[0].field
    if first.kind == "numeric":
        _check_numbers(rows, group)
        return [_number_code(column.field, seen) for column, seen in zip(group, _histograms(rows, group), strict=True)]
    widths = rows.widths(group) if first.kind == "set" else [1] * len(group)
    found = zip(group, _text_counts(rows, group), widths, strict=True)
    return [FieldCode(c.field, fit_vocabulary(c.field, counts), np.empty(0), width) for c, counts, width in found]


def _number_code(field: Field, seen: Histogram) -> FieldCode:
    none = np.empty(0)
    if field.buckets == "log-square":
        pairs = [(log_square(v), n) for v, n in zip(seen.values.tolist(), seen.counts.tolist(), strict=True)]
        return FieldCode(field, fit_vocabulary(field, _summed(pairs)), none)
    thresholds = fit_thresholds(field, seen)
    anchors = fit_anchors(thresholds, seen) if field.interpolate else none
    return FieldCode(field, {}, thresholds, max(1, field.interpolate), anchors=anchors)


def _grown(rows: _Rows, group: Group, known: Encoder) -> list[FieldCode]:
    """Known fields' codes with the new rows' values; thresholds, hashes and the width of sets stay."""
    codes = [known.codes[column.number] for column in group]
    if group[0].field.kind == "numeric":
        _check_numbers(rows, group)
        return codes
    return [grow(code, counts) for code, counts in zip(codes, _text_counts(rows, group), strict=True)]


def _check_numbers(rows: _Rows, group: Group) -> None:
    """Counts numbers' texts. One that is no number is a mistake in the schema; later ones are the field's `other`."""
    rows.count(group)
    odd = "SELECT k, v FROM counts WHERE TRY_CAST(v AS DOUBLE) IS NULL AND v IS NOT NULL"
    query = f"{odd} QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) <= 100 ORDER BY k, v"
    for k, text in rows.base.sql(query).fetchall():
        if as_number(text_of(text)) is None:
            name = group[k].field.name
            problem = f"field '{name}' is numeric, found {str(text)[:40]!r}"
            way_out = (
                "mend it, leave such rows out with --on-bad-rows skip, or make the field categorical in the schema"
            )
            raise OddCell(problem, "the training rows", name, text_of(text), way_out)


def _histograms(rows: _Rows, group: Group) -> list[Histogram]:
    """The finite numbers among the counts, how many rows have each, and how many of these are positive."""
    wanted = "k, TRY_CAST(v AS DOUBLE) AS x, sum(n)::BIGINT AS n, sum(p)::BIGINT AS p"
    found = rows.base.sql(f"SELECT {wanted} FROM counts GROUP BY k, x ORDER BY k, x").fetchnumpy()
    values = np.ma.filled(np.ma.asarray(found["x"], dtype=np.float64), np.nan)
    keep = np.isfinite(values)
    k, *sums = (np.asarray(found[name], dtype=np.int64)[keep] for name in ("k", "n", "p"))
    parts, ends = (values[keep], *sums), np.searchsorted(k, np.arange(len(group) + 1)).tolist()
    return [Histogram(*(part[first:last] for part in parts)) for first, last in itertools.pairwise(ends)]


def _text_counts(rows: _Rows, group: Group) -> list[list[tuple[str, int]]]:
    """How often each text occurs in each column; of those that are too rare only some, none where texts are hashed.

    Rare ones stay inside of DuckDB: there may be more of them than memory holds. But texts that say the same, such as 3
    and 3.0, count together, so that all of these are needed.
    """
    field, base = group[0].field, rows.base
    if field.hash_buckets:
        return [[] for _ in group]
    rows.count(group)
    kind = group[0].kind.value_type if field.kind == "set" else group[0].kind
    if not pa.types.is_string(kind):
        every = _by_column(base.sql("SELECT k, v, n FROM counts").fetchall(), group)
        return [_summed((text_of(v) or "", n) for v, n in found) for found in every]
    respelt = base.sql(f"SELECT k, v, n FROM counts WHERE {RESPELT}").fetchall()
    enough = f"n >= {field.min_count}"
    if respelt:
        same = {"k": [k for k, _, _ in respelt], "v": pa.array([text_of(v) for _, v, _ in respelt], pa.string())}
        base.register("same", pa.table(same))
        enough += " OR (k, v) IN (SELECT (k, v) FROM same)"
    plain = base.sql(f"SELECT k, v, n FROM counts WHERE ({enough}) AND NOT ({RESPELT})").fetchall()
    counts, more = _by_column(plain, group), _by_column(respelt, group)
    return [_respelt(own, other) if other else own for own, other in zip(counts, more, strict=True)]


def _by_column(found: Iterable[tuple[int, str, int]], group: Group) -> list[list[tuple[str, int]]]:
    """Rows of (k, text, count) -> the texts and counts of each column."""
    counts: list[list[tuple[str, int]]] = [[] for _ in group]
    for k, text, n in found:
        counts[k].append((text, n))
    return counts


def _respelt(plain: list[tuple[str, int]], other: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return _summed((text_of(v) or "", n) for v, n in [*plain, *other])


def _summed(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Counts of texts that different raw values share, such as 3 and 3.0."""
    total: dict[str, int] = {}
    for text, n in pairs:
        total[text] = total.get(text, 0) + n
    return list(total.items())
