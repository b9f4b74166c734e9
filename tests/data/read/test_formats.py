"""Every kind of file and table gives back the texts that were put in, in order; damage is named."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fieldwise.config.errors import DataError, FieldwiseError
from fieldwise.data.read import formats, streams

# Everything but NUL and lone surrogates, with the characters that csv readers trip over more often.
WILD = st.text(
    st.one_of(
        st.sampled_from(list("\",;|\t\n\r'\\# a0") + ["\x01", "\x1a", "\x7f", "\x85", "\u2028", "\ufeff", "é", "😀"]),
        st.characters(exclude_categories=("Cs",), exclude_characters="\0"),
    ),
    max_size=12,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Names and rows of cells; names without line breaks."""
    names = draw(st.lists(WILD.filter(lambda n: n and not set(n) & set("\r\n")), min_size=1, max_size=4, unique=True))
    rows = draw(st.lists(st.lists(WILD, min_size=len(names), max_size=len(names)), max_size=6))
    return names, rows


def write_csv(path: Path, names: list[str], rows: list[list[str]], bom: str = "", **options: Any) -> None:
    text = io.StringIO(bom, newline="")
    text.seek(len(bom))
    delimiter = "," if ".csv" in path.name else "\t"
    writer = csv.writer(text, delimiter=delimiter, **options)
    writer.writerows([names, *rows] if ".txt" not in path.name else rows)
    save(path, text.getvalue().encode())


def save(path: Path, content: bytes | str) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(
        gzip.compress(content, mtime=0) if path.suffix == ".gz" and content[:2] != b"\x1f\x8b" else content
    )
    return path


def read(*paths: Path, columns: list[str] | None = None) -> dict[str, list[Any]]:
    chunks = list(formats.read(paths, columns))
    return pa.concat_tables(chunks).to_pydict() if chunks else {}


def columns_of(names: list[str], rows: list[list[str]]) -> dict[str, list[str | None]]:
    """What a reader must give: the cells by column, empty ones as None."""
    return {name: [row[place] or None for row in rows] for place, name in enumerate(names)} if rows else {}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tables(),
    st.sampled_from(["csv", "tsv", "csv.gz", "tsv.gz"]),
    st.sampled_from(["", "\ufeff"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
@example((["c"], [["\n"], [""], ["a\r\nb"], ['"']]), "csv", "", csv.QUOTE_MINIMAL)
@example((['a"', "b,"], [["", ""], ["x", "\r"]]), "csv.gz", "\ufeff", csv.QUOTE_ALL)
@example((["a\t", "b"], [["", "\n\t"]]), "tsv", "\ufeff", csv.QUOTE_MINIMAL)
def test_wild_text_comes_back(
    tmp_path: Path, table: tuple[list[str], list[list[str]]], ending: str, bom: str, quoting: int
) -> None:
    names, rows = table
    # A name that starts with a BOM cannot be told from a file that does.
    assume(bom or not names[0].startswith("\ufeff"))
    path = tmp_path / f"wild.{ending}"
    write_csv(path, names, rows, bom, quoting=quoting)
    assert formats.column_names(path) == names
    assert read(path) == columns_of(names, rows)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_ends(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / "a.csv", ending.join(["a,b", "1,2", '"3\n",4']))
    assert read(path) == {"a": ["1", "3\n"], "b": ["2", "4"]}


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_txt_has_no_header(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, "\ufeff1\tx\t\n0\t\tz\n")
    assert read(path) == {"c0": ["1", "0"], "c1": ["x", None], "c2": [None, "z"]}
    assert read(save(tmp_path / "b.txt", "\t\n1\tx\n")) == {"c0": [None, "1"], "c1": [None, "x"]}


def test_a_cell_of_ten_megabytes(tmp_path: Path) -> None:
    cell = 'line,with "quotes"\n' * 600_000
    path = tmp_path / "big.csv"
    write_csv(path, ["a", "b"], [["1", cell], ["2", "y"]], lineterminator="\n")
    assert read(path) == {"a": ["1", "2"], "b": [cell, "y"]}
    write_csv(tmp_path / "big.txt", [], [["1", cell[: 1 << 20]]], lineterminator="\n")
    assert read(tmp_path / "big.txt")["c1"] == [cell[: 1 << 20]]


def test_quoted_lines_that_look_like_rows(tmp_path: Path) -> None:
    """However large the file, no line within quotes is taken for a row."""
    cell, count = "1,2\n" * 50_000, 100
    path = tmp_path / "rows.csv"
    write_csv(path, ["a", "b"], [[str(number), cell] for number in range(count)], lineterminator="\n")
    assert read(path, columns=["a"]) == {"a": [str(number) for number in range(count)]}


def test_a_line_beyond_the_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LONGEST_LINE", 1 << 20)
    path = save(tmp_path / "a.csv", "a,b\n1,2\n3," + "x" * (1 << 21) + "\n")
    with pytest.raises(DataError, match=r"a line is longer than .*a\.csv, line 3\)"):
        read(path)


def test_names_that_differ_in_case_or_hold_quotes(tmp_path: Path) -> None:
    path = save(tmp_path / "it's.csv", 'a,A,"b""\'"\n1,2,3\n')
    assert read(path, columns=["A", "b\"'"]) == {"A": ["2"], "b\"'": ["3"]}


def test_files_follow_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_ROWS", 2048)
    first = [str(number) for number in range(5000)]
    write_csv(tmp_path / "a.csv", ["a"], [[number] for number in first])
    write_csv(tmp_path / "b.csv.gz", ["a"], [["x"], ["y"]])
    write_csv(tmp_path / "c.tsv", ["a"], [])
    chunks = list(formats.read([tmp_path / "a.csv", tmp_path / "c.tsv", tmp_path / "b.csv.gz"]))
    assert pa.concat_tables(chunks)["a"].to_pylist() == [*first, "x", "y"]
    assert len(chunks) > 2


def test_files_with_other_columns(tmp_path: Path) -> None:
    one, two = save(tmp_path / "a.csv", "a,b\n1,2\n"), save(tmp_path / "b.csv", "a,c\n1,2\n")
    with pytest.raises(DataError, match=r"same columns, found a difference in b \(.*a\.csv, .*b\.csv\)"):
        next(formats.read([one, two]))
    with pytest.raises(DataError, match="a difference in their order"):
        next(formats.read([one, save(tmp_path / "c.csv", "b,a\n1,2\n")]))
    with pytest.raises(DataError, match=r"column 'c' is missing; the file has: a, b \(.*a\.csv\)"):
        next(formats.read([one], ["a", "c"]))


def test_parquet_keeps_types_and_order_of_columns(tmp_path: Path) -> None:
    table = pa.table({"id": [2**53 + 1, None], "x": [0.5, None], "tags": [["a", "b"], []], "s": ["é", ""]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == table.to_pydict()
    assert list(next(formats.read([tmp_path / "a.parquet"], ["s", "id"])).column_names) == ["s", "id"]


@pytest.mark.parametrize("name", ["a.libsvm", "a.svm.gz"])
def test_libsvm(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, "+1 3:1 7:0.5\n-1 4:1 7:1\n\n0 3:1 7:-2\n")
    assert read(path) == {"label": ["1", "0", "0"], "f0": ["3", "4", "3"], "f1": ["0.5", "1", "-2"]}
    alone = save(tmp_path / "one.libsvm", "1 3:1 7:0.5\n")
    assert read(alone, columns=["f1", "f0"]) == {"f1": ["0.5"], "f0": ["3"]}


@pytest.mark.parametrize("name", ["a.libffm", "a.ffm.gz"])
def test_libffm(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, "1 0:3:1 2:9:0.25 10:5:1 10:6:1\n0 0:4:1 2:9:7\n")
    found = {"label": ["1", "0"], "f0": ["3", "4"], "f2": ["0.25", "7"], "f10": ["5|6", None]}
    assert read(path) == found
    assert read(path, columns=["f10", "f99"]) == {"f10": ["5|6", None], "f99": [None, None]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,b\n1,2\n3\n", "expected 2 columns, found 1 .*a.csv, line 3"),
        ("a.tsv", "a\tb\n1\t2\n3\t4\t5\n", "expected 2 columns, found 3 .*a.tsv, line 3"),
        ("a.txt", "1\t2\n3\n", "expected 2 columns, found 1 .*a.txt, line 2"),
        ("a.csv", "a,b\n" + "1,2\n" * 250_000 + "3\n1,2\n", "expected 2 columns, found 1 .*line 250002"),
        ("a.csv", 'a,b\n1,2\n3,"4\n5,6\n', "a quoted cell is never closed .*a.csv"),
        ("a.csv", 'a,b\n1,5" pipe\n3,"4\n5,"6\n', "a quoted cell is never closed"),
        ("a.csv", 'a,b\n1,"2"x\n', "text follows its closing quote.*line 2"),
        ("a.csv", "a,b\n1,2\r\n3,4\n", "must all end in the same way"),
        ("a.csv", 'a,"b\n"\r\n1,2\r\n', "a line break in a cell of the first row"),
        ("a.csv", b"a,b\n" + b"1,2\n" * 9999 + b"\xe9,2\n", "expected UTF-8 text.*line 10001"),
        ("a.csv", b"\xe9,b\n1,2\n", "cannot read the file"),
        ("a.csv", "", "the file is empty"),
        ("a.csv.gz", "", "the file is empty"),
        ("a.csv", "\ufeff", "the file is empty"),
        ("a.csv", "a,a\n1,2\n", "must name each column once, found 'a' 2 times"),
        ("a.csv", "a,\n1,2\n", "found an empty name .column 2"),
        ("a.csv.gz", gzip.compress(b"a,b\n" + bytes(range(48, 58)) * 9999, mtime=0)[:90], "damaged or cut off"),
        ("a.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:12], "cannot read the file"),
        ("a.libsvm.gz", gzip.compress(b"1 2:1\n" * 9999, mtime=0)[:60], "cannot read the file"),
        ("a.libsvm", "1 2:1 3:1\n0 2:1\n", "expected 2 features.*line 2"),
        ("a.libsvm", "1 2\n", "expected feature:value, found '2' .*line 1"),
        ("a.libffm", "1 2:1\n", "expected field:feature:value, found '2:1'"),
        ("a.libffm", "1 0:2:1\n0 0:3:0.5\n", "a category has value 1, a number has one feature.*line 2"),
        ("a.libffm", "1 0:2:0.5\n0 0:3:1\n", "a category has value 1, a number has one feature.*line 2"),
        ("a.libsvm", "", "the file is empty"),
        ("a.parquet", "PAR1 and no more", "not a readable parquet file"),
        ("a.json", "{}", "must end in .csv"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: bytes | str, message: str) -> None:
    path = save(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as found:
        read(path)
    assert "\n" not in str(found.value)


def test_a_parquet_file_cut_in_the_middle_of_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": [str(number) for number in range(10_000)]}), path)
    content = bytearray(path.read_bytes())
    content[100:20_000] = bytes(19_900)
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a readable parquet file"):
        read(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file: .*nothing\.csv"):
        read(tmp_path / "nothing.csv")


def test_stray_quotes_are_text(tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", 'a,b\n1,5" pipe\n2,x\n')
    assert read(path) == {"a": ["1", "2"], "b": ['5" pipe', "x"]}


# Python's own tables.


def texts(rows: Any) -> dict[str, list[str | None]]:
    return {name: [formats.text_of(v) for v in column] for name, column in formats.as_table(rows).to_pydict().items()}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (3.0, "3"),
        ("3", "3"),
        (0.1, "0.1"),
        (-0.0, "0"),
        (1e20, "100000000000000000000"),
        (float("inf"), "inf"),
        (True, "true"),
        (2**53 + 1, "9007199254740993"),
        (np.int64(2**53 + 1), "9007199254740993"),
        (np.float32(3), "3"),
        (np.bool_(False), "false"),
        (np.str_("x"), "x"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2), "2024-01-02 00:00:00"),
        (decimal.Decimal("1.50"), "1.50"),
        ("", None),
        (None, None),
        (float("nan"), None),
        (np.float32("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
    ],
)
def test_one_spelling(value: object, text: str | None) -> None:
    assert formats.text_of(value) == text


def test_tables_of_python() -> None:
    columns = {"id": [1, 2**31], "x": [0.5, None], "s": ["a", ""], "b": [True, None]}
    same = {"id": ["1", "2147483648"], "x": ["0.5", None], "s": ["a", None], "b": ["true", None]}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    arrow = pa.table(columns)
    for form in (columns, rows, arrow, arrow.to_batches()[0], pl.DataFrame(columns), arrow.to_pandas()):
        assert texts(form) == same
    assert texts(pd.DataFrame(columns, dtype=object)) == same
    assert texts({name: pa.array(values) for name, values in columns.items()}) == same
    assert texts({"a": np.array([1.5, np.nan], dtype=np.float32)}) == {"a": ["1.5", None]}
    assert texts(np.array([[1, 2], [3, 4]])) == {"c0": ["1", "3"], "c1": ["2", "4"]}
    assert texts([{"a": 1}, {"b": 2}]) == {"a": ["1", None], "b": [None, "2"]}
    assert texts(pd.DataFrame({0: [1], "x": [2]})) == {"0": ["1"], "x": ["2"]}


def test_odd_columns_of_pandas() -> None:
    frame = pd.DataFrame(
        {
            "mixed": pd.Series([1, "a", None, True], dtype=object),
            "long": pd.Series([2**70, 1, None, 2], dtype=object),
            "both": pd.Series([2**53 + 1, 2.5, None, 0], dtype=object),
            "period": pd.period_range("2024-01", periods=4, freq="M"),
            "cut": pd.cut(pd.Series([1, 2, 3, 4]), 2),
        }
    )
    found = texts(frame)
    assert found["mixed"] == ["1", "a", None, "true"]
    assert found["long"] == [str(2**70), "1", None, "2"]
    assert found["both"] == [str(2**53 + 1), "2.5", None, "0"]
    assert found["period"][0] == "2024-01"
    assert found["cut"][0] == str(frame["cut"][0])


def test_sets_of_python_come_in_one_order() -> None:
    cells = [{"b", "a"}, ["z", 3.0], ("x",), None, np.array(["q"])]
    expected = [["a", "b"], ["z", "3"], ["x"], None, ["q"]]
    assert formats.as_table({"s": cells})["s"].to_pylist() == expected
    assert formats.as_table(pd.DataFrame({"s": cells}))["s"].to_pylist() == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": [1, 2], "b": [1]}, "same number of rows, found 2 in 'a' and 1 in 'b'"),
        ({"a": "text"}, "one row is a list of one dict"),
        ({"a": 1}, "one row is a list of one dict"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "found 'a' 2 times"),
        (pd.Series([1]), "found Series"),
        (np.zeros(3), "found ndarray"),
        ([1], "found list"),
        (None, "found NoneType"),
    ],
)
def test_what_is_not_a_table(rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        formats.as_table(rows)


# Writing.


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz", "a.parquet"])
def test_what_is_written_reads_back(tmp_path: Path, name: str) -> None:
    table = pa.table({'we,ird"': ['a"\n,\t', None, "é"], "probability": [0.1, 1 / 3, 1e-9]})
    counts: list[int] = []
    assert formats.write(tmp_path / name, iter([table, table]), lambda step, rows: counts.append(rows)) == 6
    assert counts == [3, 6]
    found = read(tmp_path / name)
    assert found['we,ird"'] == table['we,ird"'].to_pylist() * 2
    assert [float(p) for p in found["probability"]] == table["probability"].to_pylist() * 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    def quiet(step: str, rows: int) -> None: ...

    table = pa.table({"tags": [["a"]]})
    with pytest.raises(DataError, match=r"must end in \.csv, \.tsv or \.parquet"):
        formats.write(tmp_path / "a.libsvm", iter([table]), quiet)
    with pytest.raises(DataError, match="no rows"):
        formats.write(tmp_path / "a.csv", iter([]), quiet)
    with pytest.raises(FieldwiseError, match=r"found lists in column 'tags'; write \.parquet"):
        formats.write(tmp_path / "a.csv", iter([table]), quiet)
    assert list(tmp_path.iterdir()) == []


def test_chunks_of_wide_files_have_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_CELLS", 1000)
    table = pa.table({f"c{number}": [f"{row}" for row in range(90)] for number in range(50)})
    parquet.write_table(table, tmp_path / "rows.parquet")
    chunks = list(formats.read([tmp_path / "rows.parquet"]))
    assert [len(chunk) for chunk in chunks] == [20, 20, 20, 20, 10]
    assert pa.concat_tables(chunks) == table
    assert [len(chunk) for chunk in formats.read([tmp_path / "rows.parquet"], ["c7"])] == [90]
