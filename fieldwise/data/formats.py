"""Files and tables of many kinds -> chunks of raw columns, in the order of the rows."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fieldwise.errors import DataError
from fieldwise.files import whole_file

CHUNK_ROWS = 100_000
# DuckDB holds a few buffers of this size; a line, however large its cells, must fit into one.
LONGEST_LINE = 32 << 20
DELIMITERS = {"csv": ",", "tsv": "\t", "txt": "\t"}
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


def read(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Chunks of the named columns (all without a name) of the files, one after the other, rows in order.

    Text files give text; parquet gives its own types. Files must have the same columns.
    """
    names = column_names(paths[0])
    for path in paths:
        found = column_names(path)
        if found != names:
            odd = sorted(set(names).symmetric_difference(found)) or ["their order"]
            raise DataError(f"files must have the same columns, found a difference in {odd[0]} ({paths[0]}, {path})")
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise DataError(f"column '{missing[0]}' is missing; the file has: {', '.join(names)} ({path})")
        yield from _read_one(path, list(columns or names))


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
        return pa.table({str(name): _plain_column(list(values)) for name, values in rows.items()})
    if hasattr(rows, "to_arrow"):
        return rows.to_arrow()
    if hasattr(rows, "iloc"):
        frame = rows.copy(deep=False)
        frame.columns = [str(name) for name in frame.columns]
        return pa.Table.from_pandas(frame, preserve_index=False)
    if hasattr(rows, "ndim") and rows.ndim == 2:
        return as_table({f"c{number}": rows[:, number].tolist() for number in range(rows.shape[1])})
    raise DataError(
        f"expected a pandas, Polars or Arrow table, a list of dicts, a dict of columns or a 2-d array, "
        f"found {type(rows).__name__}"
    )


def text_of(value: object) -> str | None:
    """The one spelling of a raw value: 3, 3.0 and "3" are the same category; NaN and "" are missing.

    >>> text_of(3.0), text_of("3"), text_of(0.5), text_of(float("nan")), text_of(True), text_of("")
    ('3', '3', '0.5', None, 'true', None)
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if value != value:
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _plain_column(values: list[Any]) -> pa.Array:
    if any(isinstance(value, (list, tuple, set, frozenset)) for value in values):
        lists = [sorted(v, key=str) if isinstance(v, (set, frozenset)) else v for v in values]
        return pa.array(
            [None if v is None else [text_of(m) for m in (v if isinstance(v, (list, tuple)) else [v])] for v in lists],
            pa.list_(pa.string()),
        )
    return pa.array([text_of(value) for value in values], pa.string())


def _read_one(path: Path, columns: list[str]) -> Iterator[pa.Table]:
    kind = format_of(path)
    if kind == "parquet":
        for batch in _parquet(path).iter_batches(CHUNK_ROWS, columns=columns):
            yield pa.Table.from_batches([batch])
    elif kind in ("libsvm", "libffm"):
        yield from (chunk.select(columns) for chunk in _read_sparse(path, kind))
    else:
        yield from _read_delimited(path, kind, columns)


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]} ({path})") from None


def _read_delimited(path: Path, kind: str, columns: list[str]) -> Iterator[pa.Table]:
    import duckdb

    names = column_names(path)
    options = {
        "auto_detect": "false",
        "header": "false" if kind == "txt" else "true",
        "delim": quoted(DELIMITERS[kind]),
        "quote": quoted('"'),
        "escape": quoted('"'),
        "columns": "{" + ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in names) + "}",
        "strict_mode": "true",
        "max_line_size": str(LONGEST_LINE),
        "buffer_size": str(4 * LONGEST_LINE),
    }
    if _is_gzip(path):
        options["compression"] = "'gzip'"
    arguments = ", ".join(f"{key} = {value}" for key, value in options.items())
    wanted = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    try:
        with duckdb.connect(config={"threads": 2}) as connection:
            rows = connection.sql(f"SELECT {wanted} FROM read_csv({quoted(str(path))}, {arguments})")
            for batch in rows.to_arrow_reader(CHUNK_ROWS):
                yield pa.Table.from_batches([batch])
    except duckdb.Error as error:
        raise DataError(_plain_words(str(error), path)) from None


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
        return f"a quoted cell is never closed, or text follows its closing quote {where}"
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


def _open_text(path: Path) -> io.TextIOWrapper:
    raw: Any = gzip.open(path, "rb") if _is_gzip(path) else path.open("rb")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _first_line(path: Path) -> str:
    """The first record; a quoted header cell may hold line breaks."""
    try:
        with _open_text(path) as file:
            record = file.readline(LONGEST_LINE)
            while record.count('"') % 2 and (more := file.readline(LONGEST_LINE)):
                record += more
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"cannot read the file: {error} ({path})") from None
    if not record.strip():
        raise DataError(f"the file is empty ({path})")
    return record.rstrip("\r\n")


def _sparse_lines(path: Path) -> Iterator[tuple[int, str, list[list[str]]]]:
    """Line number, label and the colon-separated entries of libsvm and libffm lines."""
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, 1):
                label, *entries = line.split() or [""]
                if label:
                    yield number, label, [entry.split(":") for entry in entries]
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"cannot read the file: {error} ({path})") from None


def _sparse_fields(path: Path, kind: str) -> dict[str, bool]:
    """The fields of a libsvm or libffm file, and whether each is a number.

    libffm names its fields; a libsvm line has one category for each field, in order. A field with a single
    feature and several values is a number; the others are categories, whose value is 1.
    """
    features: dict[str, set[str]] = {}
    values: dict[str, set[str]] = {}
    width = None
    for number, _, entries in _sparse_lines(path):
        width = len(entries) if width is None else width
        if kind == "libsvm" and len(entries) != width:
            raise DataError(
                f"expected {width} features, one for each field, found {len(entries)} ({path}, line {number})"
            )
        for place, entry in enumerate(entries):
            if len(entry) != (3 if kind == "libffm" else 2):
                form = "field:feature:value" if kind == "libffm" else "feature:value"
                raise DataError(f"expected {form}, found '{':'.join(entry)}' ({path}, line {number})")
            field = entry[0] if kind == "libffm" else str(place)
            some = features.setdefault(field, set())
            if len(some) < 2:
                some.add(entry[-2])
            seen = values.setdefault(field, set())
            if len(seen) < 2:
                seen.add(entry[-1])
            if len(some) > 1 and not _is_one(entry[-1]):
                way_out = "a category has value 1, a number has one feature"
                raise DataError(f"{way_out}, found '{':'.join(entry)}' ({path}, line {number})")
    if not features:
        raise DataError(f"the file is empty ({path})")
    order = sorted(features, key=lambda text: (len(text), text))
    return {field: len(features[field]) == 1 and len(values[field]) > 1 for field in order}


def _read_sparse(path: Path, kind: str) -> Iterator[pa.Table]:
    is_number = _sparse_fields(path, kind)
    names = ["label", *(f"f{field}" for field in is_number)]
    positions = {field: position for position, field in enumerate(is_number, 1)}
    rows: list[list[str | None]] = []
    for _, label, entries in _sparse_lines(path):
        row: list[str | None] = [_binary(label), *[None] * len(positions)]
        for place, entry in enumerate(entries):
            field = entry[0] if kind == "libffm" else str(place)
            cell = entry[-1] if is_number[field] else entry[-2]
            before = row[positions[field]]
            row[positions[field]] = cell if before is None else f"{before}|{cell}"
        rows.append(row)
        if len(rows) == CHUNK_ROWS:
            yield _text_table(names, rows)
            rows = []
    if rows:
        yield _text_table(names, rows)


def _binary(label: str) -> str:
    """libsvm writes the negative class as -1 or 0."""
    return {"-1": "0", "+1": "1", "1.0": "1", "0.0": "0", "-1.0": "0"}.get(label, label)


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
    count, writer = 0, None
    with whole_file(path) as work:
        for chunk in chunks:
            if writer is None:
                writer = _writer(work, kind, chunk.schema)
            writer.write_table(chunk.cast(writer.schema) if kind == "parquet" else chunk)
            count += len(chunk)
            progress("writing", count)
        if writer is None:
            raise DataError("there are no rows to write")
        writer.close()
    return count


def _writer(path: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == "parquet":
        from pyarrow import parquet

        return parquet.ParquetWriter(path, schema)
    from pyarrow import csv as arrow_csv

    stream = pa.output_stream(str(path), compression="gzip" if path.suffix == ".gz" else None)
    options = arrow_csv.WriteOptions(delimiter=DELIMITERS[kind], quoting_style="needed")
    return arrow_csv.CSVWriter(stream, schema, write_options=options)
