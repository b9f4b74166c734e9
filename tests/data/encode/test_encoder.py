"""One transform: the same rows get the same ids in whatever form they come."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise.config.errors import BundleError, DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.history.history import History
from fieldwise.data.read import formats
from fieldwise.data.read.formats import as_table, text_of
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import MISSING, OTHER, Field, HistorySettings, Schema
from tests.data.fitted import fitted, ids_of

# The property: one transform.

FIELDS = (
    Field("whole", min_count=1),
    Field("real", min_count=1),
    Field("text", min_count=1),
    Field("flag", min_count=1),
    Field("day", min_count=1),
    Field("moment", min_count=1),
    Field("hashed", hash_buckets=5),
    Field("number", "numeric", max_buckets=3),
    Field("place", "numeric", max_buckets=3, interpolate=4),
    Field("count", "numeric", buckets="log-square", min_count=1),
    Field("tags", "set", min_count=1),
)
WILD = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
SOME = st.sampled_from
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole": st.one_of(st.integers(-(2**63), 2**63 - 1), SOME([2**24, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 0, -1])),
    "real": st.one_of(st.floats(), SOME([0.1, 1.0, -0.0, 1e300])),
    "text": st.one_of(WILD, SOME(["a", "A", " a", "a ", "nan", "None", "1.0", "é", "e\u0301"])),
    "flag": st.booleans(),
    "day": st.dates(),
    "moment": st.datetimes(),
    "hashed": WILD,
    "number": st.floats(),
    "place": st.floats(),
    "count": st.integers(-5, 10**6),
    "tags": st.lists(st.text("abc\n,é", min_size=1, max_size=2), max_size=4),
}


@st.composite
def columns(draw: st.DrawFn) -> dict[str, list[Any]]:
    size = draw(st.integers(2, 8))
    return {n: draw(st.lists(st.none() | v, min_size=size, max_size=size)) for n, v in VALUES.items()}


def as_csv(rows: dict[str, list[Any]], path: Path) -> Path:
    """The rows as text, as a program would write them."""
    texts = {name: [text_of(value) or "" for value in cells] for name, cells in rows.items()}
    texts["tags"] = ["|".join(cell or ()) for cell in rows["tags"]]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(texts)
        writer.writerows(zip(*texts.values(), strict=True))
    return path


def as_pandas(rows: dict[str, list[Any]]) -> pd.DataFrame:
    kinds = {"whole": "Int64", "flag": "boolean", "count": "Int64"}
    return pd.DataFrame(
        {
            name: pd.to_datetime(pd.Series(cells, dtype="datetime64[us]"))
            if name == "moment"
            else pd.Series(cells, dtype=kinds.get(name, float if name in ("real", "number", "place") else object))
            for name, cells in rows.items()
        }
    )


def as_arrow(rows: dict[str, list[Any]]) -> pa.Table:
    return pa.table({name: pa.array(cells, TYPES[name]) for name, cells in rows.items()})


TYPES = {
    "whole": pa.int64(),
    "real": pa.float64(),
    "text": pa.string(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "moment": pa.timestamp("us"),
    "hashed": pa.large_string(),
    "number": pa.float64(),
    "place": pa.float64(),
    "count": pa.int32(),
    "tags": pa.list_(pa.string()),
}


def as_dictionaries(table: pa.Table) -> pa.Table:
    plain = [name for name in table.column_names if name != "tags"]
    return pa.table({name: table[name].dictionary_encode() if name in plain else table[name] for name in TYPES})


def as_views(table: pa.Table) -> pa.Table:
    """As newer Polars hands its texts to Arrow."""
    kinds = {"text": pa.string_view(), "hashed": pa.string_view(), "tags": pa.large_list(pa.string_view())}
    return pa.table({name: pa.array(table[name].to_pylist(), kinds.get(name, TYPES[name])) for name in TYPES})


def forms(rows: dict[str, list[Any]], folder: Path) -> Iterator[tuple[str, Any]]:
    """The same rows in every form that the readers and the predictor take."""
    arrow = as_arrow(rows)
    parquet.write_table(arrow, folder / "rows.parquet")
    yield "parquet", next(formats.read([folder / "rows.parquet"]))
    yield "csv", next(formats.read([as_csv(rows, folder / "rows.csv")]))
    yield "arrow", arrow
    yield "dictionaries", as_dictionaries(arrow)
    yield "views", as_views(arrow)
    yield "dict of columns", rows
    yield "list of dicts", [dict(zip(rows, cells, strict=True)) for cells in zip(*rows.values(), strict=True)]
    yield "pandas", as_pandas(rows)
    yield "pandas objects", pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in rows.items()})
    polars = pl.DataFrame(arrow)
    yield "polars", polars
    yield "polars categories", polars.with_columns(pl.col("text", "hashed").cast(pl.Categorical))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(columns(), columns(), st.integers(1, 4))
def test_one_transform(tmp_path: Path, rows: dict[str, list[Any]], others: dict[str, list[Any]], size: int) -> None:
    """Fitted on a csv or on typed columns, for rows seen or not: one row, one list of ids, whatever its form."""
    from_text = fitted(next(formats.read([as_csv(rows, tmp_path / "train.csv")])), tmp_path / "text", *FIELDS)
    from_types = fitted(as_arrow(rows), tmp_path / "types", *FIELDS)
    for table in (rows, others):
        expected = from_text.transform(as_arrow(table))
        assert expected.dtype == np.int32
        for name, form in forms(table, tmp_path):
            whole = as_table(form)
            np.testing.assert_array_equal(from_text.transform(whole), expected, name)
            np.testing.assert_array_equal(from_types.transform(whole), expected, name)
            pieces = [from_text.transform(whole.slice(at, size)) for at in range(0, len(whole), size)]
            np.testing.assert_array_equal(np.concatenate(pieces), expected, name)
        for place, cells in enumerate(zip(*table.values(), strict=True)):
            alone = from_text.transform(as_table([dict(zip(table, cells, strict=True))]))
            np.testing.assert_array_equal(alone, expected[place : place + 1])


@pytest.mark.parametrize("form", [pd.DataFrame, pl.DataFrame, pa.table, dict])
def test_large_ids_stay_apart(tmp_path: Path, form: Any) -> None:
    numbers = [n + more for n in (2**24, 2**31, 2**53, 2**62) for more in (0, 1, 2)]
    assert len(set(ids_of(form({"id": numbers}), tmp_path / "data", Field("id", min_count=1)))) == len(numbers)
    parquet.write_table(pa.table({"id": numbers}), tmp_path / "ids.parquet")
    read = next(formats.read([tmp_path / "ids.parquet"]))
    assert len(set(ids_of(read, tmp_path / "data", Field("id", min_count=1)))) == len(numbers)


def test_the_same_value_in_other_types(tmp_path: Path) -> None:
    encoder = fitted({"x": ["3", "true", "0.5", "2024-01-02"]}, tmp_path / "data", Field("x", min_count=1))
    day = datetime.date(2024, 1, 2)
    same = [
        [3, 3.0, np.float32(3), np.int8(3), "3"],
        [True, np.True_],
        [0.5, np.float16(0.5)],
        [day, pd.Timestamp(day).date()],
    ]
    for values in same:
        found = {int(encoder.transform(as_table([{"x": value}]))[0, 0]) for value in values}
        assert len(found) == 1
        assert min(found) > OTHER
    for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string_view(), pa.large_string()):
        column = pa.array([3, None]).cast(pa.string() if "string" in str(kind) else pa.float64()).cast(kind)
        assert encoder.transform(pa.table({"x": column}))[:, 0].tolist() == [encoder.codes[0].vocabulary["3"], MISSING]


@pytest.mark.parametrize(
    "column",
    [
        pl.Series(["a", "b", None], dtype=pl.Enum(["b", "a"])),
        pl.Series(["a", "b", None], dtype=pl.Categorical),
        pd.Series(["a", "b", None], dtype="category"),
        pd.Series(["a", "b", None], dtype="string"),
        pd.Series(["a", "b", np.nan], dtype=object),
        pa.chunked_array([pa.array(["a"]).dictionary_encode(), pa.array(["b", None]).dictionary_encode()]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint32()), pa.array(["a", "b"], pa.string_view())),
    ],
)
def test_categories_of_tables(tmp_path: Path, column: Any) -> None:
    frame = pl.DataFrame({"x": column}) if isinstance(column, pl.Series) else None
    frame = pd.DataFrame({"x": column}) if isinstance(column, pd.Series) else frame
    table = as_table(pa.table({"x": column}) if frame is None else frame)
    assert ids_of(table, tmp_path / "data", Field("x", min_count=1)) == [2, 3, MISSING]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}, None, {"a": 1}]),
        pa.array([b"x", None, b"x"]),
        pa.array([datetime.time(3), None, datetime.time(3)]),
        pa.array([datetime.timedelta(1), None, datetime.timedelta(1)]),
        pa.array([1, None, 1], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([1, None, 1], pa.decimal128(9, 2)),
    ],
)
def test_odd_types_are_texts(tmp_path: Path, column: pa.Array) -> None:
    assert ids_of(pa.table({"x": column}), tmp_path / "data", Field("x")) == [2, MISSING, 2]


def test_empty_columns() -> None:
    for kind in (pa.string(), pa.string_view(), pa.date32(), pa.timestamp("ns"), pa.null(), pa.float16()):
        for column in (pa.chunked_array([], kind), pa.chunked_array([pa.array([], kind)])):
            found, places = texts_of(column)
            assert len(places) == 0
            assert found[-1] is None


# The whole.


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    encoder = fitted({"a": ["x", "y"], "b": ["p", "q"]}, tmp_path / "data", Field("a"), Field("b", min_count=1))
    assert encoder.transform(as_table({"b": ["q"], "more": ["z"], "a": ["x"]})).tolist() == [[OTHER, 3]]
    with pytest.raises(DataError, match="column 'b' is missing; the table has: a, c"):
        encoder.transform(as_table({"a": ["x"], "c": ["p"]}))


def test_a_saved_encoder_gives_the_same_ids(tmp_path: Path) -> None:
    rows = {name: [None, *values] for name, values in EXAMPLES.items()}
    encoder = fitted(rows, tmp_path / "data", *FIELDS)
    encoder.save(tmp_path / "again")
    loaded = Encoder.load(tmp_path / "again", Schema("label", FIELDS))
    assert loaded.layout == encoder.layout
    unseen: NDArray[Any] = loaded.transform(as_table(rows))
    np.testing.assert_array_equal(unseen, encoder.transform(as_table(rows)))
    for name in ("vocabulary.parquet", "encoder.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "data" / "encoder" / name).read_bytes()


EXAMPLES: dict[str, list[Any]] = {
    "whole": [1, 2**53 + 1],
    "real": [0.1, 1e300],
    "text": ['\n"é', "a\0b"],
    "flag": [True, False],
    "day": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)],
    "moment": [datetime.datetime(2024, 1, 1, 2, 3, 4, 5), datetime.datetime(2024, 1, 1)],
    "hashed": ["x", "y"],
    "number": [-1.5, 1e-300],
    "place": [-1.5, 1e-300],
    "count": [1, 100],
    "tags": [["a", "b"], ["c"]],
}


@pytest.mark.parametrize("name", ["vocabulary.parquet", "encoder.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b'{"fields": []}', b'{"fields": [{}]}'])
def test_a_damaged_encoder(tmp_path: Path, name: str, content: bytes | None) -> None:
    encoder = fitted({"x": ["a", "b"]}, tmp_path / "data", Field("x"))
    file = tmp_path / "data" / "encoder" / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(BundleError, match="the encoder is damaged"):
        Encoder.load(tmp_path / "data" / "encoder", encoder.schema)


def test_the_names_of_a_table_are_asked_for_once() -> None:
    """They are made anew each time, as many as there are: asked for by each field, they would cost quadratically."""

    class Table:
        asked = 0

        @property
        def column_names(self) -> list[str]:
            self.asked += 1
            return [f"f{number}" for number in range(9)]

        def __len__(self) -> int:
            return 2

        def __getitem__(self, name: str) -> pa.ChunkedArray:
            return pa.chunked_array([["a", "b"]])

    fields = tuple(Field(f"f{number}") for number in range(9))
    past = HistorySettings(tuple(field.name for field in fields))
    codes = [field.load(["a"], {"width": 1, "first_size": 0}) for field in fields]
    encoder, table = Encoder(Schema("click", fields, history=past), codes, History(past)), Table()
    assert encoder.transform(table)[:, :9].tolist() == [[2] * 9, [1] * 9]  # type: ignore[arg-type]
    assert table.asked == 2
