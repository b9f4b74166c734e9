"""Delimited text (csv, tsv, and what public files are written in) -> chunks of text columns, by DuckDB."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from fieldwise.config.errors import ConfigError, DataError
from fieldwise.data.read import line_blocks, streams
from fieldwise.data.read.bad_rows import BadRows

# Without quotes a cell cannot run away; threads share a file in pieces of a few such lines.
BARE_LINE = 4 << 20
# What pandas calls a column without a name when it reads it back.
UNNAMED = "Unnamed: 0"
# What may stand between cells, where it is not what the file's ending says; and the lines that show it.
SEPARATORS = (",", ";", "\t", "|")
LOOKED_AT = 20
csv.field_size_limit(streams.LONGEST_LINE)

# What the user says stands between cells; empty where files show it themselves.
_SEPARATOR: ContextVar[str] = ContextVar("separator", default="")


@contextmanager
def separated(by: str) -> Iterator[None]:
    """Lets what runs inside the block read csv, tsv and txt files with `by` between their cells; nothing: as they are.

    >>> with separated("tab"):
    ...     _SEPARATOR.get()
    '\\t'
    """
    mark = {"tab": "\t", "\\t": "\t"}.get(by, by)
    if len(mark) > 1 or mark in ('"', "\n", "\r") or not mark.isascii():
        raise ConfigError(f"--separator takes one character, or tab, found '{by}'")
    before = _SEPARATOR.set(mark)
    try:
        yield
    finally:
        _SEPARATOR.reset(before)


def separator_of(path: Path, usual: str) -> str:
    """What stands between the cells of a file: what the user said, the usual mark, or another one where that shows.

    Another one shows where it divides the first lines into as many cells each, two or more, and the usual one does not.
    """
    return _SEPARATOR.get() or _shown(path, usual, _state(path))


@lru_cache(maxsize=1000)
def _shown(path: Path, usual: str, state: tuple[int, int]) -> str:
    lines = streams.first_lines(path, LOOKED_AT) or [""]
    widths = {mark: _width(lines, mark) for mark in SEPARATORS}
    if widths[usual] > 1:
        return usual
    best = max(SEPARATORS, key=lambda mark: widths[mark])
    # Without a mark that fits all lines, a file that has the usual one is read by it: the reader says what is wrong.
    return best if widths[best] > 1 and usual not in _outside_quotes(lines[0]) else usual


def _width(lines: Sequence[str], mark: str) -> int:
    """How many cells a mark divides each of the lines into; 0 where they differ."""
    try:
        rows = [len(row) for row in csv.reader(lines, delimiter=mark) if row]
    except csv.Error:
        return 0
    # The last row may be cut off within quotes.
    whole = rows[:-1] if len(lines) == LOOKED_AT and len(rows) > 2 else rows
    return whole[0] if whole and len(set(whole)) == 1 else 0


def _outside_quotes(line: str) -> str:
    return re.sub('"[^"]*"', "", line)


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def words_of(separator: str) -> str:
    """What stands between cells, for people."""
    return {"\t": "tabs", ",": "commas"}.get(separator, f"'{separator}'")


@dataclass(frozen=True)
class Text:
    """How a text file is written: what stands between cells, and whether it names its columns, quotes its cells.

    Without `names` the first line holds them; with them there is no header. `bare` files have no quoted cells, so
    that a quote is a character as any other and two threads may read one file.
    """

    delimiter: str = ","
    names: tuple[str, ...] = ()
    bare: bool = False
    encoding: str = "utf-8"

    def first_cells(self, path: Path) -> list[str]:
        """The cells of the first line."""
        record = streams.first_record(path, not self.bare, "utf-8-sig" if self.encoding == "utf-8" else self.encoding)
        return record.split(self.delimiter) if self.bare else next(csv.reader([record], delimiter=self.delimiter), [])


def header(path: Path, text: Text) -> list[str]:
    """The columns that the first line names, each once; the first may lack its name, as the index of pandas does."""
    cells = text.first_cells(path)
    names = [cells[0] or (UNNAMED if len(cells) > 1 else ""), *cells[1:]]
    times = Counter(names)
    for number, name in enumerate(names):
        if not name or times[name] > 1:
            problem = "an empty name" if not name else f"'{name}' {times[name]} times"
            way_out = "give it a unique name there"
            if any(re.fullmatch(r"[-+]?\d+(\.\d+)?", cell) for cell in cells):
                way_out = "a file without a header ends in .txt, has tabs, and its columns are c0, c1 ..."
            raise DataError(
                f"the header must name each column once, found {problem} (column {number + 1}, {path}); {way_out}"
            )
    return names


def read(
    path: Path,
    text: Text,
    names: Sequence[str],
    columns: Sequence[str],
    bad: BadRows,
    blocks: range | None = None,
) -> Iterator[pa.Table]:
    """Chunks of some `columns` of a file that has the columns `names`, rows in order; or of some of its blocks, where
    it is known that it has such."""
    if blocks or has_blocks(path, text, bad):
        lines = line_blocks.Lines(names, columns, text.delimiter, streams.LONGEST_LINE)
        yield from line_blocks.plain_rows(path, lines, not text.names, blocks)
        return
    if streams.packing(path) == "bz2":
        yield from _read_lines(path, text, names, columns, bad)
        return
    import duckdb

    wanted = ", ".join(f"c{place}" for place in line_blocks.places(names, columns))
    rejects = (bad.skip and "store_rejects = true, rejects_limit = 0, ") or ""
    scan = f"read_csv({quoted(str(path))}, {rejects}{_arguments(path, text, len(names))})"
    try:
        with duckdb.connect(config={"threads": 2}) as connection:
            rows = connection.sql(f"SELECT {wanted} FROM {scan}")
            heading = 0 if text.names else 1
            for batch in rows.to_arrow_reader(streams.chunk_rows(len(columns))):
                if len(batch) > heading:
                    yield pa.Table.from_batches([batch.slice(heading)]).rename_columns(list(columns))
                heading = 0
            if bad.skip:
                _take_rejects(connection, path, bad)
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise DataError(_plain_words(str(error), path)) from None
    if not text.bare:
        _check_closed(path, text.delimiter)


def has_blocks(path: Path, text: Text, bad: BadRows) -> bool:
    """Whether a file is read in blocks, each of which can be read by itself."""
    return not bad.skip and text.encoding == "utf-8" and len(text.delimiter) == 1 and line_blocks.is_plain(path)


def _arguments(path: Path, text: Text, width: int) -> str:
    quote, longest = ("", BARE_LINE) if text.bare else ('"', streams.LONGEST_LINE)
    options = {
        "auto_detect": "false",
        # A header is read as a row and dropped after: DuckDB loses its way in one that has a BOM or a line break.
        "header": "false",
        "delim": quoted(text.delimiter),
        "quote": quoted(quote),
        "escape": quoted(quote),
        # Numbered, because DuckDB takes names that differ in case alone for one.
        "columns": "{" + ", ".join(f"c{number}: 'VARCHAR'" for number in range(width)) + "}",
        "strict_mode": "true",
        # In parallel, a thread may start inside a quoted cell and take its lines for rows.
        "parallel": str(text.bare).lower(),
        "max_line_size": str(longest),
        "buffer_size": str(4 * longest),
    }
    if text.encoding != "utf-8":
        options["encoding"] = quoted(text.encoding)
    if streams.packing(path) == "gzip":
        options["compression"] = "'gzip'"
    return ", ".join(f"{key} = {value}" for key, value in options.items())


def _take_rejects(connection: Any, path: Path, bad: BadRows) -> None:
    """What DuckDB left out, a line once even where it has several faults."""
    query = "SELECT line, min(error_message) FROM reject_errors GROUP BY line ORDER BY line"
    for line, message in connection.sql(query).fetchall():
        bad.add(path, f"line {line}", _reason(str(message)))


def _read_lines(
    path: Path, text: Text, names: Sequence[str], columns: Sequence[str], bad: BadRows
) -> Iterator[pa.Table]:
    """The same for .bz2, which DuckDB does not unpack; its cells are never quoted."""
    wanted = line_blocks.places(names, columns)
    rows: list[list[str]] = []
    try:
        with streams.open_text(path, text.encoding) as file:
            for number, line in enumerate(file, 1):
                cells = line.rstrip("\r\n").split(text.delimiter)
                if number == 1 and not text.names:
                    continue
                if len(cells) != len(names):
                    reason = f"expected {len(names)} columns, found {len(cells)}"
                    if not bad.skip:
                        raise DataError(f"{reason} ({path}, line {number})")
                    bad.add(path, f"line {number}", reason)
                    continue
                rows.append([cells[place] for place in wanted])
                if len(rows) == streams.chunk_rows(len(names)):
                    yield text_table(columns, rows)
                    rows = []
    except streams.UNREADABLE as error:
        raise DataError(f"the bz2 file is damaged or cut off: {error} ({path})") from None
    if rows:
        yield text_table(columns, rows)


def text_table(names: Sequence[str], rows: Iterable[Sequence[str | None]]) -> pa.Table:
    """Rows of cells as text columns; an empty cell is missing."""
    columns = zip(*rows, strict=True)
    return pa.table({n: pa.array([v or None for v in c], pa.string()) for n, c in zip(names, columns, strict=True)})


def _check_closed(path: Path, delimiter: str) -> None:
    """Refuses a quote that is still open at the end: DuckDB drops its row. An odd number of quotes gives it away."""
    with streams.open_bytes(path) as file:
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(1 << 20), b""))
    if quotes % 2:
        with streams.open_text(path) as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            try:
                for _ in rows:
                    pass
            except csv.Error:
                raise DataError(f"a quoted cell is never closed ({path}, line {rows.line_num})") from None


def quoted(text: str) -> str:
    """A string in DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def _reason(message: str) -> str:
    """What is wrong with a row, in DuckDB's words and ours."""
    ragged = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", message)
    if ragged:
        return f"expected {ragged.group(1)} columns, found {ragged.group(2)}"
    if "unterminated quote" in message:
        return "a quoted cell is never closed, text follows its closing quote, or line ends are mixed"
    if "invalid state" in message:
        return "lines must all end in the same way, found both \\n and \\r"
    if "unicode" in message.lower() or "utf-8" in message.lower():
        return "expected UTF-8 text, found other bytes"
    if "Maximum line size" in message:
        limit = re.search(r"Maximum line size of (\d+)", message)
        return f"a line is longer than {(int(limit.group(1)) if limit else streams.LONGEST_LINE) >> 20} MB"
    if "GZIP" in message.upper():
        return "the gzip file is damaged or cut off"
    return message.splitlines()[0]


def _plain_words(message: str, path: Path) -> str:
    """DuckDB's page of advice as one line with file and line."""
    line = re.search(r"CSV Error on Line: (\d+)", message)
    where = f"({path}, line {line.group(1)})" if line else f"({path})"
    return f"{_reason(message)} {where}"
