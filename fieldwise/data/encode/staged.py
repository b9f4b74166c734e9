"""The parts between reading and encoding: a folder of parquet files each, one for each chunk of rows, in order.

Label, weight and row number go by names of our own. Texts are stored with their dictionaries, so that they are hashed
once, when they are staged, and never again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from fieldwise.config.files import whole_anywhere

# What a step over rows reports: its name, and how many rows it has done.
Progress = Callable[[str, int], None]
LABEL, WEIGHT, ROW = "__label__", "__weight__", "__row__"


def quiet(step: str, rows: int) -> None:
    """Reports nothing."""


def staged_file(stage: Path, part: str, number: int) -> Path:
    """Where a part has its rows of a chunk."""
    return stage / part / f"{number:012d}.parquet"


def staged_files(part: Path) -> list[Path]:
    """The files of a staged part, in the order of their rows."""
    return sorted(part.glob("*.parquet"))


def staged_schema(part: Path) -> pa.Schema:
    """The columns of a staged part; a text is a text, whether it is stored with a dictionary or not."""
    file = staged_files(part)[0]
    return _schema_of(file, _state(file))


def staged_chunks(part: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Staged rows, or some of their columns; texts come with their dictionaries."""
    for file in staged_files(part):
        yield read_staged(file, columns)


def read_staged(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one staged file."""
    return parquet.ParquetFile(file).read(columns, use_threads=False)


def staged_rows(file: Path) -> int:
    """How many rows a staged file has."""
    return _rows_of(file, _state(file))


# Read once for each state of a file: it takes as long as the file has columns, and is asked for at every step.
@lru_cache(maxsize=10_000)
def _rows_of(file: Path, state: tuple[int, int, int]) -> int:
    return int(parquet.read_metadata(file).num_rows)


@lru_cache(maxsize=4)
def _schema_of(file: Path, state: tuple[int, int, int]) -> pa.Schema:
    return pa.schema([field.with_type(value_type(field.type)) for field in parquet.read_schema(file)])


def _state(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_staged(file: Path, rows: pa.Table) -> None:
    """Writes one staged file, whole or not at all; large dictionaries stay dictionaries."""
    file.parent.mkdir(exist_ok=True)
    with whole_anywhere(file) as work:
        parquet.write_table(
            rows, work, compression="snappy", write_statistics=False, dictionary_pagesize_limit=64 << 20
        )


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's values."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind
