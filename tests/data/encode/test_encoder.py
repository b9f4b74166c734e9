"""One transform: the same rows get the same ids in whatever form they come; thresholds and vocabularies by hand."""

from __future__ import annotations

import csv
import datetime
import math
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
from fieldwise.data.encode.encoder import MISSING, OTHER, PAD, Encoder, FieldCode, fit_vocabulary, log_square, texts_of
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.history.history import History
from fieldwise.data.kinds.buckets import Histogram, fit_thresholds
from fieldwise.data.read import formats
from fieldwise.data.read.formats import as_table, text_of
from fieldwise.data.schema import Field, HistorySettings, Schema

ALL_FOR_TRAINING = Split((1.0, 0.0, 0.0))


def fitted(rows: Any, folder: Path, *fields: Field) -> Encoder:
    """An encoder fitted on these rows and saved; every other row is positive."""
    table = as_table(rows)
    table = table.append_column("label", pa.array(np.arange(len(table)) % 2))
    schema = Schema("label", fields)
    prepare({"train": lambda: iter([table])}, folder, "label", schema, ALL_FOR_TRAINING, force=True)
    return Encoder.load(folder / "encoder", schema)


def ids_of(rows: Any, folder: Path, *fields: Field) -> list[Any]:
    """The ids of the rows that the encoder was fitted on, a number for each row of a single plain field."""
    ids = fitted(rows, folder, *fields).transform(as_table(rows))
    return ids[:, 0].tolist() if ids.shape[1] == 1 else ids.tolist()


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


# Vocabularies.


def test_rare_unseen_and_missing(tmp_path: Path) -> None:
    rows = {"x": ["b", "a", "a", "b", "a", "rare", "", None]}
    encoder = fitted(rows, tmp_path / "data", Field("x", min_count=2))
    assert encoder.layout.sizes == (4,)
    assert encoder.transform(as_table(rows))[:, 0].tolist() == [3, 2, 2, 3, 2, OTHER, MISSING, MISSING]
    assert encoder.transform(as_table({"x": ["never", "a", float("nan")]}))[:, 0].tolist() == [OTHER, 2, MISSING]
    assert [encoder.value_of(0, number) for number in range(4)] == ["(missing)", "(other)", "a", "b"]


def test_the_most_frequent_first_ties_by_text() -> None:
    counts = [("z", 3), ("b", 2), ("a", 2), ("c", 9), ("rare", 1), ("", 50)]
    assert fit_vocabulary(Field("x", min_count=2), counts) == {"c": 2, "z": 3, "a": 4, "b": 5}


def test_names_that_differ_in_case_have_their_own_vocabulary(tmp_path: Path) -> None:
    fields = Field("a", min_count=1), Field("A", min_count=1), Field("we\"ird'", min_count=1)
    rows = {"a": ["x", "y"], "A": ["p", "q"], "we\"ird'": ["1", "2"]}
    assert ids_of(rows, tmp_path / "data", *fields) == [[2, 2, 2], [3, 3, 3]]


def test_hashing_needs_no_vocabulary(tmp_path: Path) -> None:
    rows = {"x": [f"v{number}" for number in range(1000)] + [""]}
    encoder = fitted(rows, tmp_path / "data", Field("x", hash_buckets=10))
    ids = encoder.transform(as_table(rows))[:, 0]
    assert encoder.layout.sizes == (12,)
    assert ids[-1] == MISSING
    counts = np.bincount(ids[:-1], minlength=12)
    assert counts[:2].sum() == 0
    assert (counts[2:] > 50).all()
    # Bundles of other days and machines must agree: this number is for ever.
    assert encoder.transform(as_table({"x": ["v0", "unseen"]}))[:, 0].tolist() == [6, 5]
    assert encoder.value_of(0, 6) == "(hash 4)"


# Numbers.


def numbers(values: list[Any], folder: Path, **settings: Any) -> Encoder:
    return fitted({"x": values}, folder, Field("x", "numeric", **settings))


def buckets(encoder: Encoder, values: list[Any]) -> list[int]:
    return encoder.transform(as_table({"x": values}))[:, 0].tolist()


def test_quantiles(tmp_path: Path) -> None:
    encoder = numbers(list(range(100)), tmp_path / "data", max_buckets=4)
    assert encoder.codes[0].thresholds.tolist() == [24, 49, 74]
    assert encoder.layout.sizes == (6,)
    assert buckets(encoder, [-5, 0, 24, 24.5, 49, 74, 75, 1e9]) == [2, 2, 2, 3, 3, 4, 5, 5]
    assert encoder.value_of(0, 3) == "(24, 49]"
    assert encoder.value_of(0, 2) == "(-inf, 24]"


def test_few_distinct_values_have_a_bucket_each(tmp_path: Path) -> None:
    encoder = numbers([5, 1, 1, 9, 9, 9], tmp_path / "data")
    assert buckets(encoder, [1, 5, 9]) == [2, 3, 4]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(2, 9))
def test_quantile_buckets_hold_no_more_than_their_share(values: list[float], most: int) -> None:
    distinct, counts = np.unique(values, return_counts=True)
    bounds = fit_thresholds(Field("x", "numeric", max_buckets=most), Histogram(distinct, counts, 0 * counts))
    assert len(bounds) < most
    held = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
    assert (held > 0).all()
    assert (held <= len(values) / most + counts.max() + 1).all()


def test_count_thresholds_by_hand() -> None:
    """A threshold whenever more than T rows have passed since the last, as for the paper's Criteo data."""
    field = Field("x", "numeric", buckets="count", bucket_count=3)
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    counts = np.array([2, 1, 1, 4, 1, 9])
    assert fit_thresholds(field, Histogram(values, counts, 0 * counts)).tolist() == [2, 3]


@given(st.lists(st.integers(-20, 20), min_size=2), st.integers(1, 10))
def test_count_buckets_are_the_number_of_thresholds_below(values: list[int], most: int) -> None:
    """Against the published walk; it puts a threshold at the largest value too, which no training row exceeds."""
    slow: list[int] = []
    running = 0
    for value in sorted(set(values)):
        running += values.count(value)
        if running > most:
            slow.append(value)
            running = 0
    distinct, counts = np.unique(np.array(values, dtype=np.float64), return_counts=True)
    bounds = fit_thresholds(
        Field("x", "numeric", buckets="count", bucket_count=most), Histogram(distinct, counts, 0 * counts)
    )
    for value in values:
        assert np.searchsorted(bounds, value) == sum(threshold < value for threshold in slow)


def test_explicit_thresholds(tmp_path: Path) -> None:
    encoder = numbers([7, 7], tmp_path / "data", buckets="explicit", thresholds=(0.0, 10.0, 50.0))
    assert buckets(encoder, [-1, 0, 0.5, 10, 50, 51]) == [2, 2, 3, 3, 4, 5]
    assert encoder.layout.sizes == (6,)


def test_log_square(tmp_path: Path) -> None:
    assert [log_square(v) for v in (-3.0, 0.0, 1.0, 2.0, 3.0, 1000.0)] == ["SP-3", "SP0", "SP1", "SP2", "1", "47"]
    encoder = numbers([3, 1000, 1000, 1001, 1], tmp_path / "data", buckets="log-square")
    assert buckets(encoder, [1000, 1001, 3, 7, math.inf, None]) == [2, 2, OTHER, OTHER, OTHER, MISSING]


@pytest.mark.parametrize(
    "settings", [{}, {"buckets": "count", "bucket_count": 1}, {"buckets": "explicit", "thresholds": (0.0,)}]
)
def test_missing_numbers_and_infinities(tmp_path: Path, settings: dict[str, Any]) -> None:
    encoder = numbers([1.0, 2.0, math.nan, None, math.inf, -math.inf, 3.0, 3.0], tmp_path / "data", **settings)
    assert np.isfinite(encoder.codes[0].thresholds).all()
    assert buckets(encoder, [None, math.nan]) == [MISSING, MISSING]
    assert buckets(encoder, ["", "nan", "NaN"]) == [MISSING] * 3
    low, high = buckets(encoder, [-math.inf, math.inf])
    assert (low, high) == (2, encoder.layout.sizes[0] - 1)
    assert buckets(encoder, ["-inf", "inf"]) == [low, high]


@pytest.mark.parametrize("values", [[None, None], [4.0, 4.0]])
def test_a_constant_number_has_one_bucket(tmp_path: Path, values: list[Any]) -> None:
    encoder = numbers(values, tmp_path / "data")
    assert encoder.layout.sizes == (3,)
    assert buckets(encoder, [4.0, 5.0, None]) == [2, 2, MISSING]


@pytest.mark.parametrize("text", ["abc", "1_000", "1,5", "0x10"])
def test_text_in_a_numeric_field(tmp_path: Path, text: str) -> None:
    encoder = numbers([1, 2], tmp_path / "data")
    assert buckets(encoder, [text, "1", "NA"]) == [OTHER, 2, MISSING]


# Sets.


def sets(values: list[Any], folder: Path, **settings: Any) -> Encoder:
    return fitted({"x": values}, folder, Field("x", "set", **{"min_count": 1, **settings}))


def test_members_count_once_and_empty_is_missing(tmp_path: Path) -> None:
    encoder = sets(["a|b|c", "a|b", "a|a", "", None, "|"], tmp_path / "data")
    assert encoder.layout.widths == (3,)
    found = encoder.transform(as_table({"x": ["a|b|a", "", None, "||", "c", "new|a|newer"]}))
    assert found.tolist() == [
        [2, 3, PAD],
        [MISSING, PAD, PAD],
        [MISSING, PAD, PAD],
        [MISSING, PAD, PAD],
        [4, PAD, PAD],
        [OTHER, 2, PAD],
    ]


def test_sets_are_cut_to_their_width(tmp_path: Path) -> None:
    encoder = sets(["a|b|c|d", "a|b"], tmp_path / "data", max_values=2)
    assert encoder.layout.widths == (2,)
    assert encoder.transform(as_table({"x": ["d|c|b|a", "a"]})).tolist() == [[5, 4], [2, PAD]]


def test_rare_members_and_other_separators(tmp_path: Path) -> None:
    encoder = sets(["a; b", "a; c"], tmp_path / "data", min_count=2, separator="; ")
    assert list(encoder.codes[0].vocabulary) == ["a"]
    assert encoder.transform(as_table({"x": ["a; b; c", "a|b"]})).tolist() == [[2, OTHER], [OTHER, PAD]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a", "b"], ["a"], [], None]),
        pa.array([["a", "b"], ["a"], [None], None], pa.large_list(pa.large_string())),
        pa.array([["a", "b"], ["a", ""], [None, None], None], pa.list_(pa.string(), 2)),
        pa.array([["a", "b"], ["a"], [], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array(["a|b", "a", "", None]).dictionary_encode(),
    ],
)
def test_columns_of_lists(tmp_path: Path, column: pa.Array) -> None:
    table = pa.table({"x": column})
    assert fitted(table, tmp_path / "data", Field("x", "set", min_count=1)).transform(table).tolist() == [
        [2, 3],
        [2, PAD],
        [MISSING, PAD],
        [MISSING, PAD],
    ]


def test_lists_of_numbers(tmp_path: Path) -> None:
    encoder = fitted({"x": [[2**53 + 1, 2**53], [7]]}, tmp_path / "data", Field("x", "set", min_count=1))
    assert set(encoder.codes[0].vocabulary) == {"7", str(2**53), str(2**53 + 1)}
    assert encoder.transform(pa.table({"x": [[7]]})).tolist() == encoder.transform(as_table({"x": ["7"]})).tolist()


def test_lists_in_a_plain_field(tmp_path: Path) -> None:
    encoder = fitted({"x": ["a", "b"]}, tmp_path / "data", Field("x"))
    with pytest.raises(DataError, match="field 'x' is categorical, found a column of lists"):
        encoder.transform(as_table({"x": [["a"]]}))


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
    codes = [FieldCode(field, {"a": 2}, np.empty(0)) for field in fields]
    encoder, table = Encoder(Schema("click", fields, history=past), codes, History(past)), Table()
    assert encoder.transform(table)[:, :9].tolist() == [[2] * 9, [1] * 9]  # type: ignore[arg-type]
    assert table.asked == 2
