"""Vocabularies, thresholds and the width of sets from staged training rows, counted by DuckDB out of memory."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import OddCell
from fieldwise.data.encode.encoder import Encoder, FieldCode, as_number, fit_vocabulary, grow, log_square
from fieldwise.data.encode.staged import LABEL, staged_schema
from fieldwise.data.kinds.buckets import Histogram, fit_anchors, fit_thresholds
from fieldwise.data.read.formats import quoted, text_of
from fieldwise.data.schema import Field, Schema

Progress = Callable[[str, int], None]
MEMORY = "700MB"
# Texts that `text_of` may spell in another way.
RESPELT = "suffix(v, '.0') OR v IN ('True', 'False')"


@dataclass(frozen=True)
class _Column:
    """A staged column as DuckDB sees it: the connection, the rows, its name there, and the label's."""

    base: Any
    source: str
    name: str
    label: str


def fit_encoder(schema: Schema, staged: Path, progress: Progress, known: Encoder | None, threads: int) -> Encoder:
    """Vocabularies and thresholds from the staged training rows, or a known encoder's with what they add to it."""
    import duckdb

    names = staged_schema(staged).names
    # Numbered columns, because DuckDB takes names that differ in case alone for one.
    numbered = ", ".join(f"c{number}" for number in range(len(names)))
    files = quoted(f"{glob.escape(str(staged))}/*.parquet")
    source = f"read_parquet({files}) AS staged({numbered})"
    label = f"c{names.index(LABEL)}"
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": MEMORY,
        "temp_directory": str(staged.parent),
        "preserve_insertion_order": False,
    }
    codes = []
    with duckdb.connect(config=settings) as base:
        base.execute("SET parquet_metadata_cache = true")
        for number, field in enumerate(schema.fields, 1):
            column = _Column(base, source, f"c{names.index(field.name)}", label)
            codes.append(_grown(known.codes[number - 1], column) if known else _fit(field, column))
            progress("fitting", number)
    return Encoder(schema, codes)


def _fit(field: Field, column: _Column) -> FieldCode:
    none = np.empty(0)
    if field.kind == "numeric":
        _check_numbers(field, column)
        seen = _histogram(column.base)
        if field.buckets == "log-square":
            pairs = [(log_square(v), n) for v, n in zip(seen.values.tolist(), seen.counts.tolist(), strict=True)]
            return FieldCode(field, fit_vocabulary(field, _summed(pairs)), none)
        thresholds = fit_thresholds(field, seen)
        anchors = fit_anchors(thresholds, seen) if field.interpolate else none
        return FieldCode(field, {}, thresholds, max(1, field.interpolate), anchors=anchors)
    width = 1
    if field.kind == "set":
        cell = _members(field, column)
        longest = column.base.sql(f"SELECT max(len(list_distinct({cell}))) FROM {column.source}").fetchall()[0][0]
        width = min(field.max_values, max(1, int(longest or 1)))
    if field.hash_buckets:
        return FieldCode(field, {}, none, width)
    return FieldCode(field, fit_vocabulary(field, _text_counts(field, column)), none, width)


def _grown(code: FieldCode, column: _Column) -> FieldCode:
    """A known field's code with the new rows' values; thresholds, hashes and the width of sets stay."""
    if code.field.kind == "numeric":
        _check_numbers(code.field, column)
    if code.field.kind == "numeric" or code.field.hash_buckets:
        return code
    return grow(code, _text_counts(code.field, column))


def _check_numbers(field: Field, column: _Column) -> None:
    """Counts a number's texts. One that is no number is a mistake in the schema; later ones are the field's `other`."""
    _count(column, column.name)
    query = "SELECT v FROM counts WHERE TRY_CAST(v AS DOUBLE) IS NULL AND v IS NOT NULL ORDER BY v LIMIT 100"
    for (text,) in column.base.sql(query).fetchall():
        if as_number(text_of(text)) is None:
            problem = f"field '{field.name}' is numeric, found {str(text)[:40]!r}"
            way_out = (
                "mend it, leave such rows out with --on-bad-rows skip, or make the field categorical in the schema"
            )
            raise OddCell(problem, "the training rows", field.name, text_of(text), way_out)


def _count(column: _Column, cell: str) -> None:
    """Makes the table `counts`: what a column's cells hold, in how many rows, and how many of these are positive."""
    cells = f"SELECT {cell} AS v, {column.label} AS label FROM {column.source}"
    counts = f"SELECT v, count(*) AS n, sum(label) AS p FROM ({cells}) GROUP BY v"
    column.base.execute(f"CREATE OR REPLACE TEMP TABLE counts AS {counts}")


def _histogram(base: Any) -> Histogram:
    """The finite numbers among the counts, how many rows have each, and how many of these are positive."""
    query = (
        "SELECT TRY_CAST(v AS DOUBLE) AS x, sum(n)::BIGINT AS n, sum(p)::BIGINT AS p FROM counts GROUP BY x ORDER BY x"
    )
    found = base.sql(query).fetchnumpy()
    values = np.ma.filled(np.ma.asarray(found["x"], dtype=np.float64), np.nan)
    keep = np.isfinite(values)
    return Histogram(values[keep], *(np.asarray(found[name], dtype=np.int64)[keep] for name in ("n", "p")))


def _text_counts(field: Field, column: _Column) -> list[tuple[str, int]]:
    """How often each text occurs, a set's members once in each of its cells; of those that are too rare only some.

    Rare ones stay inside of DuckDB: there may be more of them than memory holds. But texts that say the same, such as 3
    and 3.0, count together, so that all of these are needed.
    """
    base = column.base
    _count(column, f"unnest(list_distinct({_members(field, column)}))" if field.kind == "set" else column.name)
    if str(base.sql("SELECT v FROM counts LIMIT 0").types[0]) != "VARCHAR":
        return _summed((text_of(v) or "", n) for v, n in base.sql("SELECT v, n FROM counts").fetchall())
    respelt = base.sql(f"SELECT v, n FROM counts WHERE {RESPELT}").fetchall()
    enough = f"n >= {field.min_count}"
    if respelt:
        base.register("same", pa.table({"v": pa.array([text_of(v) for v, _ in respelt], pa.string())}))
        enough += " OR v IN (FROM same)"
    plain: list[tuple[str, int]] = base.sql(f"SELECT v, n FROM counts WHERE ({enough}) AND NOT ({RESPELT})").fetchall()
    return _summed((text_of(v) or "", n) for v, n in [*plain, *respelt]) if respelt else plain


def _members(field: Field, column: _Column) -> str:
    """The expression for a cell of a set as a list."""
    kind = str(column.base.sql(f"SELECT {column.name} FROM {column.source} LIMIT 0").types[0])
    return column.name if kind.endswith("[]") else f"string_split({column.name}::VARCHAR, {quoted(field.separator)})"


def _summed(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Counts of texts that different raw values share, such as 3 and 3.0."""
    total: dict[str, int] = {}
    for text, n in pairs:
        total[text] = total.get(text, 0) + n
    return list(total.items())
