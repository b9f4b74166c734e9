"""Plain text is read in blocks, and gives what the careful reader gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fieldwise.config.errors import DataError
from fieldwise.data.read import formats, line_blocks
from fieldwise.data.read.parallel import using

CELLS = ("", "a", " ", " x ", "'", "\\N", "NULL", "\\", "#c", "1.0", "é", "None", ";", "|", "-", "\x0b", "\u2028")


def rows_of(path: Path) -> Any:
    try:
        return [row for chunk in formats.read([path]) for row in chunk.to_pylist()]
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("threads", [1, 3])
def test_both_readers_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Odd cells, a missing last line end, a delimiter behind the last cell, a row that is too short."""
    draw = random.Random(0)
    monkeypatch.setattr(line_blocks, "BLOCK", 40)
    for number in range(40):
        kind, width = draw.choice(["tsv", "csv", "txt"]), draw.choice([1, 2, 3])
        delimiter = formats.DELIMITERS[kind]
        lines = [delimiter.join(draw.choice(CELLS) for _ in range(width)) for _ in range(draw.randint(1, 12))]
        lines[0] = delimiter.join(f"n{place}" for place in range(width))
        if draw.random() < 0.3:
            lines.append(draw.choice(["a" + delimiter * width, delimiter.join("a" * max(1, width - 1))]))
        path = tmp_path / f"{number}.{kind}"
        path.write_text("\n".join(lines) + draw.choice(["", "\n"]), encoding="utf-8", newline="")
        with using(threads):
            fast = rows_of(path)
        with monkeypatch.context() as patch:
            patch.setattr(line_blocks, "is_plain", lambda path: False)
            assert fast == rows_of(path)


def test_the_line_of_a_fault_counts_from_the_start_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK", 64)
    path = tmp_path / "a.tsv"
    lines = ["a\tb", *["1\t2"] * 9000]
    path.write_text("\n".join([*lines, "1", *["1\t2"] * 50]))
    with using(2), pytest.raises(DataError, match=r"expected 2 columns, found 1 \(.*a.tsv, line 9002\)"):
        list(formats.read([path]))
    path.write_bytes("\n".join([*lines, "1\t"]).encode() + b"\xff\n")
    with pytest.raises(DataError, match=r"expected UTF-8 text, found other bytes \(.*a.tsv, line 9002\)"):
        list(formats.read([path]))


def test_what_is_not_plain(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in (
        b'a,b\n"x",1\n',
        b"a,b\r\n1,2\r\n",
        b"a,b\n\n1,2\n",
        b"\xef\xbb\xbfa,b\n1,2\n",
        b"\x1f\x8b..",
        b"\n1",
    ):
        path.write_bytes(content)
        assert not line_blocks.is_plain(path)
    path.write_bytes(b"a,b\n1,2")
    assert line_blocks.is_plain(path)


def test_some_columns_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\tc\n1\t\t3\n")
    assert pa.concat_tables(formats.read([path], ["c", "b"])).to_pylist() == [{"c": "3", "b": None}]


@pytest.mark.parametrize("block", [37, 64, 1000])
@pytest.mark.parametrize("header", [False, True])
def test_blocks_read_by_themselves_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, header: bool
) -> None:
    """Of all columns the same chunks, of few of them the same rows, wherever the file is cut."""
    draw, names = random.Random(block), [f"x{number}" for number in range(9)]
    rows = [[f"{'v' * draw.randint(0, 12)}{row}", *"abcdefgh"] for row in range(60)]
    path = tmp_path / "log.csv"
    text = "\n".join(",".join(row) for row in ([names] if header else []) + rows)
    path.write_text(text + "\n" * (block == 64))
    for name, value in (("BLOCK", block), ("LOOK", 5), ("FEW", 1)):
        monkeypatch.setattr(line_blocks, name, value)
    lines, few = (line_blocks.Lines(names, some, ",", 32 << 20) for some in (names, names[:1]))
    whole = [table.to_pydict() for table in line_blocks.plain_rows(path, lines, header)]
    count = line_blocks.block_count(path, header)
    for cuts in ([count], [1, count], [2, 3, count], [*range(1, count), count]):
        ends = sorted({min(cut, count) for cut in cuts})
        pieces = [range(first, last) for first, last in zip([0, *ends], ends, strict=False)]
        found = [line_blocks.plain_rows(path, lines, header, some) for some in pieces]
        assert [table.to_pydict() for tables in found for table in tables] == whole
        picked = [line_blocks.plain_rows(path, few, header, some) for some in pieces]
        cells = [cell for tables in picked for table in tables for cell in table["x0"].to_pylist()]
        assert cells == [row[0] for row in rows]
