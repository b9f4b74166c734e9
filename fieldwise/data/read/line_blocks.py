"""Delimited text in which every line is a row -> tables of text columns, in blocks that several threads parse.

That holds where no cell is quoted, which one fast look at the bytes tells; other files go through DuckDB. Both give the
same rows and the same complaints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fieldwise.config.errors import DataError
from fieldwise.data.read.cells import Cells, cells_of
from fieldwise.data.read.parallel import in_order

Parsed = TypeVar("Parsed", bound=Sized)

BLOCK = 16 << 20
# Bytes that hold enough rows to see how a file ends.
LAST = 1 << 20
# Bytes that are not worth compiled loops.
FEW = 1 << 20
# What a processor's cache holds while it is looked at more than once.
LOOK = 128 << 10
LINE_END = ord("\n")
# How many times the wanted columns a file must have for these to be picked out.
MANY_TIMES = 8
# How many times smaller their blocks may be, which then stay in a processor's cache.
FINER = 16


@dataclass(frozen=True)
class Lines:
    """How the rows are written: the columns in the file, those wanted, what stands between cells, the longest line."""

    names: Sequence[str]
    columns: Sequence[str]
    delimiter: str
    longest: int


def is_plain(path: Path) -> bool:
    """Whether every line is a row: UTF-8 without a mark, not packed, no quote, no empty line, all ends \\n."""
    last = b"\n"
    with path.open("rb") as file:
        if file.read(3)[:2] in (b"\x1f\x8b", b"\xef\xbb", b"BZ"):
            return False
        file.seek(0)
        while block := file.read(LOOK):
            if b'"' in block or b"\r" in block or _has_empty_line(last + block):
                return False
            last = block[-1:]
    return True


def _has_empty_line(block: bytes) -> bool:
    """Whether two line ends follow each other, at several times the speed of a search for them."""
    ends = np.frombuffer(block, dtype=np.uint8) == LINE_END
    return bool((ends[1:] & ends[:-1]).any())


def plain_rows(path: Path, lines: Lines, header: bool, some: range | None = None) -> Iterator[pa.Table]:
    """Tables of the wanted columns of a plain file, or of `some` of its blocks, in order; an empty cell is missing."""
    few = len(lines.columns) * MANY_TIMES <= len(lines.names)
    return _in_blocks(path, lines, header, _picked if few else _parsed, some, FINER if some and few else 1)


def block_count(path: Path, header: bool) -> int:
    """How many blocks a plain file has."""
    with path.open("rb") as file:
        start = len(file.readline()) if header else 0
    return -(-(path.stat().st_size - start) // BLOCK)


def plain_cells(path: Path, lines: Lines, header: bool) -> Iterator[pa.Table | Cells]:
    """The same, but cells stay where they are in blocks that have no fault."""
    return _in_blocks(path, lines, header, _cells)


def _in_blocks(
    path: Path,
    lines: Lines,
    header: bool,
    parse: Callable[[bytes, Lines], Parsed | _Fault],
    some: range | None = None,
    finer: int = 1,
) -> Iterator[Parsed]:
    passed = 0
    blocks = _blocks(path, header, lines.longest, some, finer)
    for found in in_order(lambda block: parse(block, lines), blocks):
        if isinstance(found, _Fault):
            before = _lines_before(path, header, some.start) if some else 0
            raise DataError(f"{found.reason} ({path}, line {before + passed + found.line + header})")
        passed += len(found)
        yield found


@dataclass(frozen=True)
class _Fault:
    """What is wrong in a block, and in which of its lines."""

    reason: str
    line: int


def _blocks(path: Path, header: bool, longest: int, some: range | None = None, finer: int = 1) -> Iterator[bytes]:
    """The file, or some of it, in blocks that end with a line; a line belongs to the block that it ends in.

    `finer` blocks are as many times smaller.
    """
    size, left = BLOCK // finer, len(some) * BLOCK if some else math.inf
    with path.open("rb") as file:
        if header:
            file.readline()
        start = file.tell()
        rest = _begun(file, start, some.start) if some else b""
        file.seek(start + (some.start * BLOCK if some else 0))
        while left > 0:
            block = file.read(int(min(size, left)))
            left -= size
            end = block.rfind(b"\n") + 1
            if end:
                # Of the block itself no further copy.
                yield b"".join((rest, memoryview(block)[:end]))
                rest = block[end:]
            else:
                rest += block
            # Of a longer line the parser will say so.
            if not block or len(rest) > longest:
                break
        else:
            # What has begun here goes on in the next block, if there is one.
            rest = b"" if file.read(1) else rest
        if rest:
            yield rest


def _begun(file: BinaryIO, start: int, number: int) -> bytes:
    """The bytes of the line that has begun before a block, behind the header at `start`."""
    first, found = start + number * BLOCK, b""
    while first > start:
        size = min(LOOK, first - start)
        first -= size
        file.seek(first)
        block = file.read(size)
        end = block.rfind(b"\n") + 1
        found = block[end:] + found
        if end:
            break
    return found


def _lines_before(path: Path, header: bool, number: int) -> int:
    """How many lines end before a block; asked when one of its lines has a fault."""
    with path.open("rb") as file:
        left = (len(file.readline()) if header else 0) + number * BLOCK
        file.seek(0)
        count = 0
        while left and (block := file.read(min(LOOK, left))):
            count += block.count(b"\n")
            left -= len(block)
        return count - header


def last_rows(path: Path, lines: Lines) -> pa.Table | None:
    """The rows of a plain file's last bytes; None where they have a fault, or no line begins in them."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST))
        # A line that began before; of a small file its header.
        file.readline()
        block = file.read()
    found = _parsed(block, lines) if block else None
    return None if isinstance(found, _Fault) else found


def _cells(block: bytes, lines: Lines) -> pa.Table | Cells | _Fault:
    worth = FEW <= len(block) <= lines.longest
    cells = cells_of(block, lines.names, lines.columns, lines.delimiter) if worth else None
    return _parsed(block, lines) if cells is None else cells


def _picked(block: bytes, lines: Lines) -> pa.Table | _Fault:
    """The same for few of many columns: the cells of the others are passed over."""
    found = _cells(block, lines)
    return pa.table({name: found[name] for name in lines.columns}) if isinstance(found, Cells) else found


def _parsed(block: bytes, lines: Lines) -> pa.Table | _Fault:
    if len(block) > lines.longest and (fault := _fault(block, lines)):
        return fault
    try:
        return _table(block, lines)
    except pa.ArrowInvalid:
        block = _trimmed(block, lines)
    if fault := _fault(block, lines):
        return fault
    return _table(block, lines)


def _table(block: bytes, lines: Lines) -> pa.Table:
    # Numbered, because the wanted columns are asked for by names that must differ.
    numbered = [f"c{number}" for number in range(len(lines.names))]
    wanted = [f"c{place}" for place in places(lines.names, lines.columns)]
    table = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=numbered),
        parse_options=csv.ParseOptions(
            delimiter=lines.delimiter,
            quote_char=False,
            double_quote=False,
            escape_char=False,
            ignore_empty_lines=False,
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(numbered, pa.string()),
            include_columns=wanted,
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    return table.rename_columns(list(lines.columns))


def places(names: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Where each of some columns is among the names."""
    place = {name: number for number, name in enumerate(names)}
    return [place[name] for name in columns]


def _trimmed(block: bytes, lines: Lines) -> bytes:
    """Without a delimiter behind the last cell, which some programs write."""
    end = lines.delimiter.encode()
    rows = block.split(b"\n")
    return b"\n".join(row[:-1] if row.endswith(end) and row.count(end) == len(lines.names) else row for row in rows)


def _fault(block: bytes, lines: Lines) -> _Fault | None:
    """The first line that is too long, has too few or too many cells, or is no text."""
    for number, line in enumerate(block.split(b"\n"), 1):
        if len(line) > lines.longest:
            return _Fault(f"a line is longer than {lines.longest >> 20} MB", number)
        found = line.count(lines.delimiter.encode()) + 1
        if found != len(lines.names) and line:
            return _Fault(f"expected {len(lines.names)} columns, found {found}", number)
        try:
            line.decode()
        except UnicodeDecodeError:
            return _Fault("expected UTF-8 text, found other bytes", number)
    return None
