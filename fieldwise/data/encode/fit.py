"""The codes of all fields from staged training rows, each by its kind, counted by DuckDB out of memory."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.staged import LABEL, staged_schema
from fieldwise.data.kinds.staged_column import StagedColumn
from fieldwise.data.read.formats import quoted
from fieldwise.data.schema import Schema

Progress = Callable[[str, int], None]
MEMORY = "700MB"


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
            column = StagedColumn(base, source, f"c{names.index(field.name)}", label)
            codes.append(known.codes[number - 1].grown(column) if known else field.fit(column))
            progress("fitting", number)
    return Encoder(schema, codes)
