"""Opening text files as they come: plain, .gz or .bz2, recognised by their first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import re
from pathlib import Path
from typing import Any

from fieldwise.config.errors import DataError

# Rows that are held at a time, and cells where rows are wide.
CHUNK_ROWS, CHUNK_CELLS = 100_000, 10_000_000
# DuckDB holds a few buffers of this size; a line, however large its cells, must fit into one.
LONGEST_LINE = 32 << 20
# What reading a damaged or foreign file raises.
UNREADABLE = (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError)
# Files that are no text, by the bytes that they begin with.
FOREIGN = {
    b"PK\x03\x04": "a zip archive, as Excel files are too",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"7z\xbc\xaf": "a 7z archive",
    b"PAR1": "a parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a numpy file",
    b"SQLite format": "an SQLite database",
    b"%PDF": "a PDF file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


def check_file(path: Path) -> None:
    """Refuses what is no file, and says what it is."""
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        way_out = f"name the files in it, such as {inside[0]}" if inside else "there is no file in it"
        raise DataError(f"expected a file, found a folder ({path}); {way_out}")
    if not path.exists():
        raise DataError(f"no such file: {path}")
    if not path.is_file():
        raise DataError(f"expected a file, which can be read twice, found a pipe or a device ({path}); save it first")


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a file that cannot be read as text: what it is instead, where its first bytes tell."""
    with path.open("rb") as file:
        start = file.read(16)
    found = next((what for bytes_, what in FOREIGN.items() if start.startswith(bytes_)), "")
    if not found and path.suffix.lower() == ".gz" and not packing(path):
        found = f"other bytes ({start[:8]!r}), and no gzip file in spite of its name"
    if not found and isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return DataError(f"cannot read the file: expected UTF-8 text, found byte {byte:#x} ({path}); save it as UTF-8")
    if not found:
        return DataError(f"cannot read the file: {error} ({path})")
    return DataError(
        f"expected UTF-8 text, plain or in a gzip file, found {found} ({path}); write it as csv or parquet"
    )


def chunk_rows(columns: int) -> int:
    """The rows of a chunk of `columns` columns.

    >>> chunk_rows(40), chunk_rows(5_000)
    (100000, 2000)
    """
    return max(1, min(CHUNK_ROWS, CHUNK_CELLS // max(1, columns)))


def packing(path: Path) -> str:
    """`gzip`, `bz2`, or nothing for a plain file."""
    with path.open("rb") as file:
        start = file.read(3)
    return "gzip" if start[:2] == b"\x1f\x8b" else "bz2" if start == b"BZh" else ""


def open_bytes(path: Path) -> Any:
    """The bytes of a file, unpacked."""
    packed = packing(path)
    return gzip.open(path, "rb") if packed == "gzip" else bz2.open(path, "rb") if packed else path.open("rb")


def open_text(path: Path, encoding: str = "utf-8-sig") -> io.TextIOWrapper:
    """The text of a file, unpacked; line ends stay as they are."""
    return io.TextIOWrapper(open_bytes(path), encoding=encoding, newline="")


def first_lines(path: Path, count: int, encoding: str = "utf-8-sig") -> list[str]:
    """Up to `count` of the first lines, with their ends; of a damaged file those before the damage."""
    lines: list[str] = []
    try:
        with open_text(path, encoding) as file:
            while len(lines) < count and (line := file.readline(LONGEST_LINE)):
                lines.append(line)
    except UNREADABLE:
        pass
    return lines


def first_record(path: Path, quoted: bool = True, encoding: str = "utf-8-sig") -> str:
    """The first record; a quoted header cell may hold line breaks."""
    try:
        with open_text(path, encoding) as file:
            lines = [file.readline(LONGEST_LINE)]
            quotes = lines[0].count('"')
            while quoted and quotes % 2 and (more := file.readline(LONGEST_LINE)):
                lines.append(more)
                quotes += more.count('"')
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    record = "".join(lines)
    if not record.strip("\r\n"):
        raise DataError(f"the file is empty, or its first line is ({path})")
    if len(set(re.findall("\r\n|\r|\n", record))) > 1:
        raise DataError(f"a line break in a cell of the first row must be the one that ends the row ({path})")
    return record.rstrip("\r\n")
