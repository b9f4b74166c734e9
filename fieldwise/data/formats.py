"""Files and tables of many kinds -> chunks of raw columns, in the order of the rows."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.data import reading
from fieldwise.errors import DataError
from fieldwise.files import whole_file

CHUNK_ROWS = 100_000
# DuckDB holds a few buffers of this size; a line, however large its cells, must fit into one.
LONGEST_LINE = 32 << 20
DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
TEXT = (*DELIMITERS, "libsvm", "svm", "libffm", "ffm")
csv.field_size_limit(LONGEST_LINE)


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
    paths: Sequence[Path], columns: Sequence[str] | None = None, numbers: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """Chunks of the named columns (all without a name) of the files, one after the other, rows in order.

    Text files give text; parquet gives its own types. Files must have the same columns; a field that no line
    of a libffm file has is missing in all of them. Which of a libsvm or libffm file's fields are `numbers` is
    known once a schema is; without one the files themselves tell.
    """
    if numbers is None:
        numbers = number_fields(paths)
    names = column_names(paths[0])
    missing = [name for name in columns or () if name not in names]
    if missing and format_of(paths[0]) != "libffm":
        raise DataError(f"column '{missing[0]}' is missing; the file has: {', '.join(names)} ({paths[0]})")
    for path in paths[1:]:
        found = column_names(path)
        if found != names:
            odd = sorted(set(names).symmetric_difference(found)) or ["their order"]
            raise DataError(f"files must have the same columns, found a difference in {odd[0]} ({paths[0]}, {path})")
    for path in paths:
        yield from _read_one(path, list(columns or names), numbers)


def number_fields(paths: Sequence[Path]) -> set[str]:
    """The fields that are numbers in any of these libsvm and libffm files."""
    sparse = [path for path in paths if path.is_file() and format_of(path) in ("libsvm", "libffm")]
    fields = [item for path in sparse for item in _sparse_fields(path, format_of(path)).items()]
    return {f"f{field}" for field, is_number in fields if is_number}


def column_names(path: Path) -> list[str]:
    """The columns of a file; a .txt file has no header, its columns are c0, c1 ... (c0 is the first)."""
    if not path.is_file():
        raise DataError(f"no such file: {path}")
    kind = format_of(path)
    if kind == "parquet":
        return [str(name) for name in _parquet(path).schema_arrow.names]
    if kind in ("libsvm", "libffm"):
        return ["label", *(f"f{field}" for field in _sparse_fields(path, kind))]
    names = next(csv.reader([_first_line(path)], delimiter=DELIMITERS[kind]), [])
    if kind == "txt":
        return [f"c{number}" for number in range(len(names))]
    for number, name in enumerate(names):
        if not name or names.count(name) > 1:
            problem = "an empty name" if not name else f"'{name}' {names.count(name)} times"
            raise DataError(f"the header must name each column once, found {problem} (column {number + 1}, {path})")
    return names


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


def _from_columns(columns: list[tuple[str, Any]]) -> pa.Table:
    names = [name for name, _ in columns]
    for name, column in columns:
        if names.count(name) > 1:
            raise DataError(f"each column needs a name of its own, found '{name}' {names.count(name)} times")
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


def _read_one(path: Path, columns: list[str], numbers: Collection[str]) -> Iterator[pa.Table]:
    kind = format_of(path)
    if kind == "parquet":
        yield from _read_parquet(path, columns)
    elif kind in ("libsvm", "libffm"):
        yield from _read_sparse(path, kind, columns, numbers)
    else:
        yield from _read_delimited(path, kind, columns)


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]} ({path})") from None


def _read_parquet(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    try:
        for batch in _parquet(path).iter_batches(CHUNK_ROWS, columns=columns):
            yield pa.Table.from_batches([batch]).select(columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]} ({path})") from None


def _read_delimited(path: Path, kind: str, columns: list[str]) -> Iterator[pa.Table]:
    names = column_names(path)
    if reading.is_plain(path):
        lines = reading.Lines(names, columns, DELIMITERS[kind], LONGEST_LINE)
        yield from reading.plain_rows(path, lines, kind != "txt")
        return
    import duckdb

    options = {
        "auto_detect": "false",
        # The header is read as a row and dropped below: DuckDB loses its way in one that has a BOM or a line break.
        "header": "false",
        "delim": quoted(DELIMITERS[kind]),
        "quote": quoted('"'),
        "escape": quoted('"'),
        # Numbered, because DuckDB takes names that differ in case alone for one.
        "columns": "{" + ", ".join(f"c{number}: 'VARCHAR'" for number in range(len(names))) + "}",
        "strict_mode": "true",
        # In parallel, a thread may start inside a quoted cell and take its lines for rows.
        "parallel": "false",
        "max_line_size": str(LONGEST_LINE),
        "buffer_size": str(4 * LONGEST_LINE),
    }
    if _is_gzip(path):
        options["compression"] = "'gzip'"
    arguments = ", ".join(f"{key} = {value}" for key, value in options.items())
    wanted = ", ".join(f"c{names.index(name)}" for name in columns)
    try:
        with duckdb.connect(config={"threads": 2}) as connection:
            rows = connection.sql(f"SELECT {wanted} FROM read_csv({quoted(str(path))}, {arguments})")
            heading = 0 if kind == "txt" else 1
            for batch in rows.to_arrow_reader(CHUNK_ROWS):
                if len(batch) > heading:
                    yield pa.Table.from_batches([batch.slice(heading)]).rename_columns(columns)
                heading = 0
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise DataError(_plain_words(str(error), path)) from None
    _check_closed(path, DELIMITERS[kind])


def _check_closed(path: Path, delimiter: str) -> None:
    """Refuses a quote that is still open at the end: DuckDB drops its row. An odd number of quotes gives it away."""
    with _open_bytes(path) as file:
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(1 << 20), b""))
    if quotes % 2:
        with _open_text(path) as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            try:
                for _ in rows:
                    pass
            except csv.Error:
                raise DataError(f"a quoted cell is never closed ({path}, line {rows.line_num})") from None


def quoted(text: str) -> str:
    """A string in DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def _plain_words(message: str, path: Path) -> str:
    """DuckDB's page of advice as one line with file and line."""
    line = re.search(r"CSV Error on Line: (\d+)", message)
    where = f"({path}, line {line.group(1)})" if line else f"({path})"
    ragged = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", message)
    if ragged:
        return f"expected {ragged.group(1)} columns, found {ragged.group(2)} {where}"
    if "unterminated quote" in message:
        return f"a quoted cell is never closed, text follows its closing quote, or line ends are mixed {where}"
    if "invalid state" in message:
        return f"lines must all end in the same way, found both \\n and \\r {where}"
    if "unicode" in message.lower():
        return f"expected UTF-8 text, found other bytes {where}"
    if "Maximum line size" in message:
        return f"a line is longer than {LONGEST_LINE >> 20} MB {where}"
    if "GZIP" in message.upper():
        return f"the gzip file is damaged or cut off {where}"
    return f"{message.splitlines()[0]} {where}"


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _open_bytes(path: Path) -> Any:
    return gzip.open(path, "rb") if _is_gzip(path) else path.open("rb")


def _open_text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline="")


def _first_line(path: Path) -> str:
    """The first record; a quoted header cell may hold line breaks."""
    try:
        with _open_text(path) as file:
            lines = [file.readline(LONGEST_LINE)]
            quotes = lines[0].count('"')
            while quotes % 2 and (more := file.readline(LONGEST_LINE)):
                lines.append(more)
                quotes += more.count('"')
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"cannot read the file: {error} ({path})") from None
    record = "".join(lines)
    if not record.strip("\r\n"):
        raise DataError(f"the file is empty, or its first line is ({path})")
    if len(set(re.findall("\r\n|\r|\n", record))) > 1:
        raise DataError(f"a line break in a cell of the first row must be the one that ends the row ({path})")
    return record.rstrip("\r\n")


def _sparse_lines(path: Path) -> Iterator[tuple[int, str, list[list[str]]]]:
    """Line number, label and the colon-separated entries of libsvm and libffm lines."""
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, 1):
                words = line.split()
                if words:
                    # Rows to predict may come without a label: what has a colon is an entry.
                    label = "" if ":" in words[0] else words.pop(0)
                    yield number, label, [entry.split(":") for entry in words]
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"cannot read the file: {error} ({path})") from None


def _sparse_fields(path: Path, kind: str) -> dict[str, bool]:
    """The fields of a libsvm or libffm file, and whether each is a number.

    libffm names its fields; a libsvm line has one category for each field, in order. A field with a single
    feature and a value other than 1 is a number; the others are categories, whose value is 1.
    """
    features: dict[str, set[str]] = {}
    numbers: set[str] = set()
    width = None
    for number, _, entries in _sparse_lines(path):
        width = len(entries) if width is None else width
        if kind == "libsvm" and len(entries) != width:
            way_out = "libffm, where entries name their field, takes lines of any length"
            raise DataError(
                f"expected {width} features, one for each field, found {len(entries)}; {way_out} "
                f"({path}, line {number})"
            )
        for place, entry in enumerate(entries):
            if len(entry) != (3 if kind == "libffm" else 2):
                form = "field:feature:value" if kind == "libffm" else "feature:value"
                raise DataError(f"expected {form}, found '{':'.join(entry)}' ({path}, line {number})")
            field = entry[0] if kind == "libffm" else str(place)
            some = features.setdefault(field, set())
            if len(some) < 2:
                some.add(entry[-2])
            if not _is_one(entry[-1]):
                numbers.add(field)
            if len(some) > 1 and field in numbers:
                way_out = "a category has value 1, a number has one feature"
                raise DataError(f"{way_out}, found '{':'.join(entry)}' ({path}, line {number})")
    if not features:
        raise DataError(f"the file is empty ({path})")
    order = sorted(features, key=lambda text: (len(text), text))
    return {field: field in numbers for field in order}


def _read_sparse(path: Path, kind: str, columns: list[str], numbers: Collection[str]) -> Iterator[pa.Table]:
    is_number = {field: f"f{field}" in numbers for field in _sparse_fields(path, kind)}
    names = ["label", *(f"f{field}" for field in is_number)]
    names += [name for name in columns if name not in names]
    positions = {field: position for position, field in enumerate(is_number, 1)}
    rows: list[list[str | None]] = []
    for _, label, entries in _sparse_lines(path):
        row: list[str | None] = [_binary(label), *[None] * (len(names) - 1)]
        for place, entry in enumerate(entries):
            field = entry[0] if kind == "libffm" else str(place)
            cell = entry[-1] if is_number[field] else entry[-2]
            before = row[positions[field]]
            row[positions[field]] = cell if before is None else f"{before}|{cell}"
        rows.append(row)
        if len(rows) == CHUNK_ROWS:
            yield _text_table(names, rows).select(columns)
            rows = []
    if rows:
        yield _text_table(names, rows).select(columns)


def _binary(label: str) -> str | None:
    """libsvm writes the negative class as -1 or 0."""
    return {"-1": "0", "+1": "1", "1.0": "1", "0.0": "0", "-1.0": "0"}.get(label, label) or None


def _is_one(text: str) -> bool:
    try:
        return float(text) == 1.0
    except ValueError:
        return False


def _text_table(names: list[str], rows: Iterable[Sequence[str | None]]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    return pa.table({n: pa.array(c, pa.string()) for n, c in zip(names, columns, strict=True)})


def write(path: Path, chunks: Iterator[pa.Table], progress: Callable[[str, int], None]) -> int:
    """Writes chunks as csv, tsv or parquet by the file's ending; returns the number of rows."""
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
