"""The parts between reading and encoding: parquet files; label, weight and row number go by names of our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

LABEL, WEIGHT, ROW = "__label__", "__weight__", "__row__"


def staged_chunks(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Staged rows, or some of their columns; texts come with their dictionaries, which spares hashing every cell."""
    names = parquet.read_schema(path)
    text = [field.name for field in names if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    for batch in parquet.ParquetFile(path, read_dictionary=text).iter_batches(100_000, columns=columns):
        yield pa.Table.from_batches([batch])
