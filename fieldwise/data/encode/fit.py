"""The codes of all fields from staged training rows, each by its kind, counted by DuckDB out of memory."""

from __future__ import annotations

import dataclasses
import glob
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.lifetimes import Lifetimes
from fieldwise.data.encode.staged import LABEL, Progress, staged_files, staged_rows, staged_schema
from fieldwise.data.kinds.buckets import Histogram
from fieldwise.data.kinds.counted import Counted, Piece, Query, summed
from fieldwise.data.kinds.kind import OTHER, Code, Field
from fieldwise.data.kinds.ranks import fitted
from fieldwise.data.read.formats import is_list, quoted, text_of
from fieldwise.data.schema import Schema

Texts = list[tuple[str, int]]
MEMORY = "700MB"
# Texts that `text_of` may spell in another way.
RESPELT = "suffix(v, '.0') OR v IN ('True', 'False')"
# A statement costs by the columns of the file, whichever it counts: about as much for each as this many cells to count.
# So wide files are counted in groups of columns; and no group has more than this many cells and columns.
CELLS_A_COLUMN, GROUP_CELLS, GROUP_COLUMNS = 1_000, 4_000_000, 1_000
# Rare texts that are read at a time.
REST_ROWS = 1 << 18


def fit_encoder(
    schema: Schema,
    staged: Path,
    progress: Progress,
    known: Encoder | None,
    threads: int,
    lifetimes: Lifetimes | None = None,
) -> Encoder:
    """The codes that the fields fit on the staged training rows, or a known encoder's with what they add to it.

    With `lifetimes` this is a folder of a chain: what it has of values is remembered, and decides of known ones.
    """
    table = staged_schema(staged)
    source = Source.of(table, f"{glob.escape(str(staged))}/*.parquet")
    most = most_together(sum(map(staged_rows, staged_files(staged))), len(table))
    fits = Fits(schema, known, lifetimes)
    with opened(staged.parent, threads) as base:
        for queries in groups_of(schema, table, most):
            fits.take(queries, Group(base, source, list(queries.values())))
            progress("fitting", len(fits.codes))
    return fits.encoder()


@contextmanager
def opened(work: Path, threads: int) -> Iterator[Any]:
    """A DuckDB that holds little in memory, and the rest in files under `work`."""
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": MEMORY,
        "temp_directory": str(work),
        "preserve_insertion_order": False,
    }
    with duckdb.connect(config=settings) as base:
        base.execute("SET parquet_metadata_cache = true")
        yield base


@dataclass
class Fits:
    """The codes of fields that were fitted so far, by the fields' numbers."""

    schema: Schema
    known: Encoder | None
    lifetimes: Lifetimes | None
    codes: dict[int, Code] = dataclasses.field(default_factory=dict)

    def take(self, queries: Iterable[int], group: Group) -> None:
        """Fits the fields that are counted together."""
        for k, number in enumerate(queries):
            self.codes[number] = self._code(number, _Column(group, k))

    def encoder(self) -> Encoder:
        """The encoder of all codes, with those that need no counting."""
        for number, one in enumerate(self.schema.fields):
            if one.key:
                self.codes[number] = self._code(number, None)
        every = [self.codes[number] for number in range(len(self.schema.fields))]
        encoder = Encoder(replace(self.schema, fields=tuple(code.field for code in every)), every)
        if self.lifetimes:
            self.lifetimes.close(encoder.schema.fields)
            encoder.lifetimes = self.lifetimes
        return encoder

    def _code(self, number: int, column: _Column | None) -> Code:
        """The code of one field; it comes after that of the field whose ids it shares."""
        own, known = self.schema.fields[number], self.known
        if own.shares:
            owner = self.codes[self.schema.names.index(own.shares)]
            return own.over(owner, known.codes[number].width) if known else own.fit_over(owner, column)
        if column is None:
            return known.codes[number] if known else own.load([], {})
        if known:
            code = known.codes[number]
            return self.lifetimes.grown(code, column) if self.lifetimes else code.grown(column)
        code = _fitted(own, column)
        if self.lifetimes:
            self.lifetimes.first(code, column)
        return code


def _fitted(field: Field, column: Counted) -> Code:
    """The code of a field; one that is fixed in service must be so at a value that training rows have."""
    code = fitted(field.placed(column), column)
    if field.role and OTHER in code.fixed_ids[:, : code.width]:
        found = f"found '{code.field.at}', which they have less than {code.field.settings.get('min_count', 2)} times"
        raise ConfigError(f"field '{field.name}': at must be a value that training rows have, {found}")
    return code


def most_together(rows: int, width: int) -> int:
    """How many columns are counted together: one alone where it has many more rows than the file has columns."""
    return max(1, min(GROUP_COLUMNS, min(GROUP_CELLS, CELLS_A_COLUMN * width) // max(1, rows)))


def groups_of(schema: Schema, table: pa.Schema, most: int) -> Iterator[dict[int, Query]]:
    """The numbers of fields that are counted together, and what is to be counted of each."""
    places, types = {name: place for place, name in enumerate(table.names)}, table.types
    alike: dict[object, dict[int, Query]] = {}
    # Fields that share the ids of others come last, and earlier rows are not counted.
    counted = [(number, field) for number, field in enumerate(schema.fields) if not field.key]
    for number, field in sorted(counted, key=lambda each: bool(each[1].shares)):
        place = places[field.column]
        query = field.query(f"c{place}", is_list(types[place]))
        key = (field.kind, str(types[place]), query.several, query.least, query.counted, field.shares)
        alike.setdefault(key, {})[number] = query
    for same in alike.values():
        every = iter(same.items())
        while group := dict(itertools.islice(every, most)):
            yield group


@dataclass(frozen=True)
class Source:
    """Staged rows, and their label, as DuckDB has them."""

    rows: str
    label: str

    @classmethod
    def of(cls, table: pa.Schema, *files: str) -> Source:
        """Those of parquet files, or of all that a pattern stands for, with the columns of a table."""
        # Numbered columns, because DuckDB takes names that differ in case alone for one.
        numbered = ", ".join(f"c{number}" for number in range(len(table)))
        listed = ", ".join(map(quoted, files))
        return cls(f"read_parquet([{listed}]) AS staged({numbered})", f"c{table.names.index(LABEL)}")


class Group:
    """Columns that are counted together, one below the other, at the first question about any of them."""

    def __init__(self, base: Any, source: Source, queries: Sequence[Query]) -> None:
        self.base, self.queries = base, queries
        cells, count = ", ".join(query.cell for query in queries), len(queries)
        k, cell = (f"unnest(range({count}))", f"unnest([{cells}])") if count > 1 else ("0", cells)
        self.cells = f"SELECT {k} AS k, {cell} AS cell, {source.label} AS label FROM {source.rows}"

    @cached_property
    def counts(self) -> str:
        """The table of what the cells of column k hold, v, in how many rows, n, and in how many positive ones, p."""
        what = "unnest(list_distinct(cell))" if self.queries[0].several else "cell"
        cells = f"SELECT k, {what} AS v, label FROM ({self.cells})"
        # One column is faster by its values alone.
        k, by = ("k", "k, v") if len(self.queries) > 1 else ("0", "v")
        counted = f"SELECT {k} AS k, v, count(*) AS n, sum(label) AS p FROM ({cells}) GROUP BY {by}"
        self.base.execute(f"CREATE OR REPLACE TEMP TABLE counts AS {counted}")
        return "counts"

    @cached_property
    def longest(self) -> dict[int, int | None]:
        cell = "cell" if self.queries[0].repeats else "list_distinct(cell)"
        query = f"SELECT k, max(len({cell})) FROM ({self.cells}) GROUP BY k"
        return dict(self.base.sql(query).fetchall())

    @cached_property
    def odd_texts(self) -> list[list[Any]]:
        odd = f"SELECT k, v FROM {self.counts} WHERE TRY_CAST(v AS DOUBLE) IS NULL AND v IS NOT NULL"
        query = f"{odd} QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) <= 100 ORDER BY k, v"
        return [[text for (text,) in own] for own in self._by_column(self.base.sql(query).fetchall())]

    @cached_property
    def histograms(self) -> list[Histogram]:
        wanted = "k, TRY_CAST(v AS DOUBLE) AS x, sum(n)::BIGINT AS n, sum(p)::BIGINT AS p"
        found = self.base.sql(f"SELECT {wanted} FROM {self.counts} GROUP BY k, x ORDER BY k, x").fetchnumpy()
        values = np.ma.filled(np.ma.asarray(found["x"], dtype=np.float64), np.nan)
        keep = np.isfinite(values)
        finite = values[keep]
        k, counts, positives = (np.asarray(found[name], dtype=np.int64)[keep] for name in ("k", "n", "p"))
        ends = np.searchsorted(k, np.arange(len(self.queries) + 1)).tolist()
        own = [slice(*pair) for pair in itertools.pairwise(ends)]
        return [Histogram(finite[rows], counts[rows], positives[rows]) for rows in own]

    @cached_property
    def texts(self) -> list[Texts]:
        """Rare texts stay inside of DuckDB: there may be more of them than memory holds.

        But texts that say the same, such as 3 and 3.0, count together, so that all of these are needed.
        """
        base, counts = self.base, self.counts
        if not self.has_texts:
            every = self._by_column(base.sql(f"SELECT k, v, n FROM {counts}").fetchall())
            return [_spelt(own) for own in every]
        respelt = base.sql(f"SELECT k, v, n FROM {counts} WHERE {RESPELT}").fetchall()
        enough = f"n >= {self.queries[0].least}"
        if respelt:
            same = {"k": [k for k, _, _ in respelt], "v": pa.array([text_of(v) for _, v, _ in respelt], pa.string())}
            base.register("same", pa.table(same))
            enough += " OR (k, v) IN (SELECT (k, v) FROM same)"
        plain = base.sql(f"SELECT k, v, n FROM {counts} WHERE ({enough}) AND NOT ({RESPELT})").fetchall()
        self.too_rare = f"NOT ({enough}) AND NOT ({RESPELT}) AND v != ''"
        both = zip(self._by_column(plain), self._by_column(respelt), strict=True)
        return [_spelt([*own, *other]) if other else own for own, other in both]

    @cached_property
    def has_texts(self) -> bool:
        """Whether what the cells hold are texts; of other values all are read."""
        return str(self.base.sql(f"SELECT v FROM {self.counts} LIMIT 0").types[0]) == "VARCHAR"

    def rest(self, k: int) -> Iterator[Piece]:
        """The texts of column k that `texts` has left inside of DuckDB, and in how many rows each is."""
        if not (self.texts and self.has_texts and self.queries[k].least > 1):
            return
        if len(self.queries) > 1:
            yield from _pieces(self.rests[k].to_batches())
        else:
            yield from _pieces(
                self.base.sql(f"SELECT v, n FROM {self.counts} WHERE {self.too_rare}").to_arrow_reader(REST_ROWS)
            )

    @cached_property
    def rests(self) -> list[pa.Table]:
        """What `rest` gives, of all columns: where these are several, they are small."""
        found = self.base.sql(f"SELECT v, n, k FROM {self.counts} WHERE {self.too_rare} ORDER BY k").to_arrow_table()
        ends = np.searchsorted(found["k"].to_numpy(), np.arange(len(self.queries) + 1)).tolist()
        return [found.slice(first, last - first) for first, last in itertools.pairwise(ends)]

    def _by_column(self, found: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
        """Rows of (k, ...) -> the rest of them for each column."""
        columns: list[list[Any]] = [[] for _ in self.queries]
        for row in found:
            columns[row[0]].append(row[1:])
        return columns


@dataclass(frozen=True)
class _Column:
    """What is counted of column k of a group: see Counted."""

    group: Group
    k: int

    @property
    def texts(self) -> Texts:
        return self.group.texts[self.k]

    @property
    def rest(self) -> Iterator[Piece]:
        return self.group.rest(self.k)

    @property
    def histogram(self) -> Histogram:
        return self.group.histograms[self.k]

    @property
    def odd_texts(self) -> list[str]:
        return self.group.odd_texts[self.k]

    @property
    def longest(self) -> int:
        return self.group.longest.get(self.k) or 0


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    for batch in batches:
        yield batch.column(0), batch.column(1).to_numpy().astype(np.int64)


def _spelt(counts: Iterable[tuple[Any, int]]) -> Texts:
    return summed((text_of(value) or "", n) for value, n in counts)
