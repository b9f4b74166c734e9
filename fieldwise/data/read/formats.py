"""Files and tables of many kinds -> chunks of raw columns, in the order of the rows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import DataError, missing_column
from fieldwise.config.files import check_no_folder, whole_file
from fieldwise.config.own_process import pyarrow_alone
from fieldwise.data.read import delimited, line_blocks, sparse, streams
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.cells import Cells
from fieldwise.data.read.delimited import Text
from fieldwise.data.read.delimited import quoted as quoted

pyarrow_alone()

DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
# How pandas names an index that it wrote without a name, in csv and in parquet.
INDEX_NAMES = r"Unnamed: 0(\.\d+)?|__index_level_0__"
TEXT = (*DELIMITERS, "libsvm", "svm", "libffm", "ffm")


def format_of(path: Path) -> str:
    """The format by the file's ending, without .gz.

    >>> format_of(Path("log.csv.gz"))
    'csv'
    """
    suffixes = [suffix.lower().lstrip(".") for suffix in path.suffixes]
    ending = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == "gz" else (suffixes or [""])[-1]
    if ending in ("parquet", "pq"):
        return "parquet"
    if ending not in TEXT:
        raise DataError(f"a file must end in .csv, .tsv, .txt, .parquet, .libsvm or .libffm (.gz too), found {path}")
    return {"svm": "libsvm", "ffm": "libffm"}.get(ending, ending)


def read(
    paths: Sequence[Path],
    columns: Sequence[str] | None = None,
    numbers: Collection[str] | None = None,
    bad: BadRows | None = None,
) -> Iterator[pa.Table]:
    """Chunks of the named columns (all without a name) of the files, one after the other, rows in order.

    Text files give text; parquet gives its own types. Files must have the same columns; a field that no line
    of a libffm file has is missing in all of them. Which of a libsvm or libffm file's fields are `numbers` is
    known once a schema is; without one the files themselves tell. `bad` counts rows to skip; without it none are.
    """
    for _, chunks in read_each(paths, columns, numbers, bad or BadRows()):
        yield from chunks


def read_cells(path: Path, columns: Sequence[str], numbers: Collection[str]) -> Iterator[pa.Table | Cells]:
    """What `read` gives for one file, for callers that need cells only: those of plain text stay where they are."""
    streams.check_file(path)
    kind = format_of(path)
    if kind not in DELIMITERS or not line_blocks.is_plain(path):
        return read([path], columns, numbers)
    names = column_names(path, kind)
    _check_there(path, kind, names, columns)
    lines = line_blocks.Lines(names, columns, _delimiter(path, kind), streams.LONGEST_LINE)
    return line_blocks.plain_cells(path, lines, header=kind != "txt")


def read_each(
    paths: Sequence[Path], columns: Sequence[str] | None, numbers: Collection[str] | None, bad: BadRows, kind: str = ""
) -> Iterator[tuple[Path, Iterator[pa.Table]]]:
    """The files and their chunks, as `read` gives them; with a `kind` the endings do not matter."""
    if numbers is None:
        numbers = number_fields(paths, kind, bad)
    names = column_names(paths[0], kind, bad)
    _check_there(paths[0], kind or format_of(paths[0]), names, columns or ())
    for path in paths[1:]:
        check_alike(names, paths[0], column_names(path, kind, bad), path)
    for path in paths:
        bad.start(path)
        yield path, _read_one(path, kind or format_of(path), list(columns or names), numbers, bad)


def _check_there(path: Path, kind: str, names: Sequence[str], columns: Sequence[str]) -> None:
    """Refuses a file that lacks a column."""
    there = frozenset(names)
    missing = [name for name in columns if name not in there]
    if missing and kind != "libffm":
        raise DataError(f"{missing_column(missing[0], names)} ({path})")


def check_alike(names: Sequence[str], path: Path, others: Sequence[str], other: Path) -> None:
    """Refuses files that have different columns."""
    if list(others) != list(names):
        odd = sorted(set(names).symmetric_difference(others)) or ["their order"]
        raise DataError(f"files must have the same columns, found a difference in {odd[0]} ({path}, {other})")


def number_fields(paths: Sequence[Path], kind: str = "", bad: BadRows | None = None) -> set[str]:
    """The fields that are numbers in any of these libsvm and libffm files."""
    kinds = {path: kind or format_of(path) for path in paths if path.is_file()}
    some = {path: of for path, of in kinds.items() if of in sparse.KINDS}
    fields = [item for path, of in some.items() for item in sparse.fields_of(path, of, bad).items()]
    return {f"f{field}" for field, is_number in fields if is_number}


def column_names(path: Path, kind: str = "", bad: BadRows | None = None) -> list[str]:
    """The columns of a file; a .txt file has no header, its columns are c0, c1 ... (c0 is the first)."""
    streams.check_file(path)
    kind = kind or format_of(path)
    if kind == "parquet":
        return _differing([str(name) for name in _parquet(path).schema_arrow.names], f" ({path})")
    if kind in sparse.KINDS:
        return ["label", *(f"f{field}" for field in sparse.fields_of(path, kind, bad))]
    text = Text(_delimiter(path, kind))
    if kind == "txt":
        return [f"c{number}" for number in range(len(text.first_cells(path)))]
    return delimited.header(path, text)


def _delimiter(path: Path, kind: str) -> str:
    return delimited.separator_of(path, DELIMITERS[kind])


def found_separator(path: Path) -> str:
    """What stands between the cells of a text file, if it is not what its ending says."""
    kind = format_of(path)
    found = _delimiter(path, kind) if kind in DELIMITERS else ""
    return found if found != DELIMITERS.get(kind, "") else ""


def index_columns(path: Path, bad: BadRows) -> list[str]:
    """The columns of a file that are the index of a pandas table: named by pandas, or the first of a csv or tsv file
    and without a name, they number the rows, which may have been shuffled since."""
    kind = format_of(path)
    names = [name for name in column_names(path, bad=bad) if re.fullmatch(INDEX_NAMES, name)]
    if not names or kind in (*sparse.KINDS, "txt"):
        return []
    first = next(read([path], names, (), BadRows(bad.skip)), None)
    found = [name for name in names if first is not None and _numbers_rows(first[name])]
    nameless = kind != "parquet" and not Text(_delimiter(path, kind)).first_cells(path)[0]
    if nameless and delimited.UNNAMED not in found and first is not None:
        cells = first[delimited.UNNAMED].to_pylist()
        odd = next((cell for cell in cells if not (cell and cell.isdecimal())), "a number twice")
        raise DataError(
            f"the first column has no name and does not number the rows, found {odd!r} in it; "
            f"name it in the header ({path}, line 1)"
        )
    return found


def _numbers_rows(column: pa.ChunkedArray) -> bool:
    cells = [text_of(cell) for cell in column.to_pylist()]
    return all(cell and cell.isdecimal() for cell in cells) and len(set(cells)) == len(cells)


def last_rows(path: Path, columns: Sequence[str]) -> pa.Table | None:
    """Some columns of some of a file's last rows; None where the whole file must be read for them."""
    kind = format_of(path)
    if kind == "parquet":
        file = _parquet(path)
        return file.read_row_group(file.num_row_groups - 1, columns=list(columns)) if file.num_row_groups else None
    if kind not in DELIMITERS or not line_blocks.is_plain(path):
        return None
    lines = line_blocks.Lines(column_names(path, kind), columns, _delimiter(path, kind), streams.LONGEST_LINE)
    return line_blocks.last_rows(path, lines)


def as_table(rows: Any) -> pa.Table:
    """An Arrow table of a pandas, Polars or Arrow table, a list of dicts, a dict of columns or a 2-d array."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return as_table({name: [row.get(name) for row in rows] for name in names})
    if isinstance(rows, dict):
        return _from_columns([(str(name), _plain_column(_values(name, column))) for name, column in rows.items()])
    if hasattr(rows, "to_arrow"):
        return rows.to_arrow()
    if hasattr(rows, "iloc") and rows.ndim == 2:
        return _from_columns([(str(n), _pandas_column(rows.iloc[:, i])) for i, n in enumerate(rows.columns)])
    if hasattr(rows, "ndim") and rows.ndim == 2:
        return as_table({f"c{number}": rows[:, number].tolist() for number in range(rows.shape[1])})
    raise DataError(
        f"expected a pandas, Polars or Arrow table, a list of dicts, a dict of columns or a 2-d array, "
        f"found {type(rows).__name__}"
    )


def text_of(value: object) -> str | None:
    """The one spelling of a raw value: 3, 3.0, "3" and "3.0" are the same category; NaN and "" are missing.

    A csv that another program wrote says True and 3.0 where a typed table holds a boolean and a number.

    >>> text_of(3.0), text_of("3.0"), text_of(0.5), text_of(float("nan")), text_of("True"), text_of("")
    ('3', '3', '0.5', None, 'true', None)
    """
    if isinstance(value, str):
        if value.endswith(".0") and value[:-2].removeprefix("-").isdecimal():
            return str(value[:-2])
        return {"True": "true", "False": "false"}.get(value, str(value)) or None
    if isinstance(value, np.generic):
        value = value.item()
    # pandas' NA refuses every comparison, even with itself.
    if value is None or type(value).__name__ == "NAType" or value != value:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column's cells hold several values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _values(name: object, column: Any) -> list[Any]:
    """The cells of a column in a dict of columns."""
    if isinstance(column, (str, bytes, dict)) or not hasattr(column, "__iter__"):
        raise DataError(
            f"expected a list of values in column '{name}', found {column!r}; one row is a list of one dict"
        )
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _differing(names: list[str], where: str = "") -> list[str]:
    """The names of columns, each of which must differ from the others."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DataError(f"each column needs a unique name, found '{name}' {times} times{where}")
    return names


def _from_columns(columns: list[tuple[str, Any]]) -> pa.Table:
    names = _differing([name for name, _ in columns])
    for name, column in columns:
        if len(column) != len(columns[0][1]):
            found = f"{len(columns[0][1])} in '{names[0]}' and {len(column)} in '{name}'"
            raise DataError(f"columns must have the same number of rows, found {found}")
    return pa.table([column for _, column in columns], names=names)


def _plain_column(values: list[Any]) -> pa.Array:
    if any(isinstance(value, (list, tuple, set, frozenset, np.ndarray)) for value in values):
        return pa.array([_members(value) for value in values], pa.list_(pa.string()))
    return pa.array([text_of(value) for value in values], pa.string())


def _members(cell: Any) -> list[str | None] | None:
    """The texts of a set's cell; a value alone is a set of one."""
    if isinstance(cell, (list, tuple, np.ndarray)):
        return [text_of(member) for member in cell]
    if isinstance(cell, (set, frozenset)):
        return [text_of(member) for member in sorted(cell, key=str)]
    return None if text_of(cell) is None else [text_of(cell)]


def _pandas_column(column: Any) -> Any:
    """A pandas column in Arrow's own type; mixed objects, and types that Arrow does not know, as text."""
    try:
        found = pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError):
        return _plain_column(column.tolist())
    kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
    own = pa.types.is_string(kind) if column.dtype == object else not isinstance(kind, pa.BaseExtensionType)
    return found if own else _plain_column(column.tolist())


def read_piece(
    path: Path,
    blocks: range | None,
    columns: Sequence[str] | None,
    numbers: Collection[str],
    bad: BadRows,
    kind: str = "",
) -> Iterator[pa.Table]:
    """The chunks that `read_each` gives for one file, or for some blocks of it."""
    kind = kind or format_of(path)
    bad.start(path)
    return _read_one(path, kind, list(columns or column_names(path, kind, bad)), numbers, bad, blocks)


def blocks_of(path: Path, bad: BadRows) -> int:
    """In how many blocks a file can be read; 0 where it is read as a whole."""
    kind = format_of(path)
    if kind not in DELIMITERS:
        return 0
    text = Text(_delimiter(path, kind))
    return line_blocks.block_count(path, kind != "txt") if delimited.has_blocks(path, text, bad) else 0


def schema_of(path: Path, bad: BadRows) -> pa.Schema:
    """The columns of a file as its chunks have them; all but those of a parquet file are texts."""
    names = column_names(path, bad=bad)
    if format_of(path) == "parquet":
        return _parquet(path).schema_arrow
    return pa.schema([(name, pa.string()) for name in names])


def _read_one(
    path: Path,
    kind: str,
    columns: list[str],
    numbers: Collection[str],
    bad: BadRows,
    blocks: range | None = None,
) -> Iterator[pa.Table]:
    if kind == "parquet":
        yield from _read_parquet(path, columns)
    elif kind in sparse.KINDS:
        yield from sparse.read(path, kind, columns, numbers, bad)
    else:
        names = column_names(path, kind)
        text = Text(_delimiter(path, kind), tuple(names) if kind == "txt" else ())
        yield from delimited.read(path, text, names, columns, bad, blocks)


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        packed = "it is packed once more; unpack it" if streams.packing(path) else str(error).splitlines()[0]
        raise DataError(f"not a readable parquet file: {packed} ({path})") from None


def _read_parquet(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    try:
        for batch in _parquet(path).iter_batches(streams.chunk_rows(len(columns)), columns=columns):
            yield pa.Table.from_batches([batch]).select(columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]} ({path})") from None


def write(path: Path, chunks: Iterator[pa.Table], progress: Callable[[str, int], None]) -> int:
    """Writes chunks as csv, tsv or parquet by the file's ending; returns the number of rows."""
    check_no_folder(path)
    kind = format_of(path)
    if kind not in ("csv", "tsv", "parquet"):
        raise DataError(f"the output must end in .csv, .tsv or .parquet, found {path}")
    first = next(chunks, None)
    if first is None:
        raise DataError("there are no rows to write")
    count = 0
    with whole_file(path) as work, _writer(work, kind, first.schema) as writer:
        for chunk in itertools.chain([first], chunks):
            writer.write_table(chunk.cast(first.schema))
            count += len(chunk)
            progress("writing", count)
    return count


@contextmanager
def _writer(path: Path, kind: str, schema: pa.Schema) -> Iterator[Any]:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if kind == "parquet":
        with parquet.ParquetWriter(path, schema) as writer:
            yield writer
        return
    for field in schema:
        if pa.types.is_nested(field.type):
            raise DataError(f"a {kind} cell holds one value, found lists in column '{field.name}'; write .parquet")
    options = arrow_csv.WriteOptions(delimiter=DELIMITERS[kind], quoting_style="needed")
    # The writer does not close the stream, and an open gzip stream loses its end without a word.
    packing = "gzip" if path.suffix == ".gz" else None
    with (
        pa.output_stream(str(path), compression=packing) as stream,
        arrow_csv.CSVWriter(stream, schema, write_options=options) as writer,
    ):
        yield writer
