"""Opening text files as they come: plain, .gz or .bz2, told by their first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import re
from pathlib import Path
from typing import Any

from fieldwise.config.errors import DataError

CHUNK_ROWS = 100_000
# DuckDB holds a few buffers of this size; a line, however large its cells, must fit into one.
LONGEST_LINE = 32 << 20
# What reading a damaged or foreign file raises.
UNREADABLE = (UnicodeDecodeError, EOFError, gzip.BadGzipFile, OSError)


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
        raise DataError(f"cannot read the file: {error} ({path})") from None
    record = "".join(lines)
    if not record.strip("\r\n"):
        raise DataError(f"the file is empty, or its first line is ({path})")
    if len(set(re.findall("\r\n|\r|\n", record))) > 1:
        raise DataError(f"a line break in a cell of the first row must be the one that ends the row ({path})")
    return record.rstrip("\r\n")
