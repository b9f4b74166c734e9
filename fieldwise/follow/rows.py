"""Rows that were taken in and may be needed again: a parquet file for each file, with the columns that models read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise.config.errors import DataError, first_line
from fieldwise.config.files import whole_file
from fieldwise.data.encode.stage import as_text, plain_type
from fieldwise.data.kinds.set import SetField
from fieldwise.data.read.formats import is_list
from fieldwise.data.read.labels import read_labels, read_weights
from fieldwise.data.schema import Schema
from fieldwise.follow.journal import Taken

FOLDER = "rows"
# Rows that are read at a time.
STEP = 100_000


def path_of(work: Path, number: int) -> Path:
    """Where the rows of the file with this number lie."""
    return work / FOLDER / f"{number:06d}.parquet"


def write(path: Path, chunks: Iterable[pa.Table]) -> int:
    """Writes rows; returns how many there were. Without any there is no file."""
    rows = 0
    with whole_file(path) as file:
        writer: parquet.ParquetWriter | None = None
        for chunk in chunks:
            writer = writer or parquet.ParquetWriter(file, chunk.schema)
            writer.write_table(chunk.cast(writer.schema))
            rows += len(chunk)
        if writer is None:
            raise DataError("there are no rows in it")
        writer.close()
    return rows


def read(
    work: Path, files: Iterable[Taken], first: int, end: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows from number `first` on and before `end`, in chunks that do not depend on what else is read."""
    for taken in files:
        low, high = max(first, taken.first), min(end, taken.end)
        if low < high:
            try:
                yield from _slices(path_of(work, taken.number), low - taken.first, high - taken.first, columns)
            except (FileNotFoundError, pa.ArrowException) as error:
                raise DataError(f"the rows that were kept of {taken.file} are damaged: {first_line(error)}") from None


def _slices(path: Path, low: int, high: int, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    passed = 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(STEP, columns=None if columns is None else list(columns)):
            first, last = max(low - passed, 0), min(high - passed, len(batch))
            if first < last:
                yield pa.Table.from_batches([batch]).slice(first, last - first)
            passed += len(batch)


def alike(work: Path, files: Sequence[Taken], first: int, end: int, schema: Schema) -> Iterator[pa.Table]:
    """`read` with each column in one type: logs may write it as numbers on one day and as texts on another."""
    kinds: dict[str, set[pa.DataType]] = {}
    for taken in files:
        if max(first, taken.first) < min(end, taken.end):
            for column in parquet.read_schema(path_of(work, taken.number)):
                kinds.setdefault(column.name, set()).add(plain_type(column.type))
    odd = {name: any(map(is_list, own)) for name, own in kinds.items() if len(own) > 1}
    sets = {field.column: field for field in schema.fields if isinstance(field, SetField)}
    for chunk in read(work, files, first, end):
        for name, lists in odd.items():
            column = chunk[name]
            if not is_list(column.type):
                column = _as_lists(column, sets[name]) if lists else as_text(column)
            chunk = chunk.set_column(chunk.column_names.index(name), name, column)
        yield chunk


def _as_lists(column: pa.ChunkedArray, field: SetField) -> pa.ChunkedArray:
    """The members of the cells of a set that are texts."""
    cells = [None if text is None else field.members(text) for text in as_text(column).to_pylist()]
    return pa.chunked_array([cells], pa.list_(pa.string()))


def labels_of(schema: Schema, chunks: Callable[[], Iterator[pa.Table]]) -> NDArray[np.uint8]:
    """The labels of all rows that count: those of weight 0 do not."""
    found = [np.empty(0, dtype=np.uint8)]
    for chunk in chunks():
        labels = read_labels(chunk[schema.label], schema.label, 0, classes=schema.classes)
        found.append(labels[read_weights(chunk[schema.weight], schema.weight, 0) > 0] if schema.weight else labels)
    return np.concatenate(found)


def drop(work: Path, files: Iterable[Taken], before: int) -> None:
    """Removes the files whose rows all come before that number."""
    for taken in files:
        if taken.end <= before:
            path_of(work, taken.number).unlink(missing_ok=True)


def oldest(work: Path, files: Iterable[Taken]) -> int:
    """The number of the first row that is still there, or of the next to come."""
    last = 0
    for taken in files:
        if taken.rows and path_of(work, taken.number).exists():
            return taken.first
        last = taken.end
    return last
