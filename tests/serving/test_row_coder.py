"""The plain path from a request's values to ids is the encoder's transform, and history is told the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.history.history import moment
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import FIRST, Field, HistorySettings, Schema
from fieldwise.serving.row_coder import RowCoder, column_of, ranked_column
from tests.serving.bundles import FIELDS, Prepared, log, prepared

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 600),
    st.floats(),
    st.floats(0, 100).map(lambda number: round(number, 2)),
    st.sampled_from(
        ["u1", "u3", "3.0", "3", "True", "nan", "NA", "1e3", "1_000", "inf", "-inf", "a|b", "a||z|a", "|", "0.5"]
    ),
    st.text(max_size=4).filter(lambda text: text.isprintable()),
)
ROWS = st.fixed_dictionaries({}, optional={field.name: VALUES for field in FIELDS})


@pytest.fixture(scope="module")
def encoder(everything: Prepared) -> Encoder:
    return Encoder.load(everything.data / "encoder", Schema.load(everything.data / "schema.toml"))


def transformed(encoder: Encoder, row: dict[str, Any]) -> np.ndarray:
    """The ids of one row by the encoder itself."""
    return encoder.transform(as_table({name: [row.get(name)] for name in encoder.schema.columns}))


@given(rows=st.lists(ROWS, min_size=1, max_size=5), times=st.lists(st.floats(200, 300), min_size=5, max_size=5))
def test_ids_are_those_of_the_encoder(encoder: Encoder, rows: list[dict[str, Any]], times: list[float]) -> None:
    rows = [{**row, "when": time} for row, time in zip(rows, times, strict=False)]
    coder = RowCoder(encoder)
    found = coder.ids(column_of(rows), len(rows))
    assert found.dtype == np.int32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.vstack([transformed(encoder, row) for row in rows]))


def test_ids_of_the_log_and_of_lists(encoder: Encoder) -> None:
    coder, rows = RowCoder(encoder), log(60, seed=3)
    found = coder.ids(column_of(rows), len(rows))
    np.testing.assert_array_equal(found, np.vstack([transformed(encoder, row) for row in rows]))
    listed = [{"tags": ["b", "a", "b"]}, {"tags": []}, {"tags": ["z", None, 3.0]}]
    found = coder.ids(column_of(listed), 3)
    np.testing.assert_array_equal(found, np.vstack([transformed(encoder, row) for row in listed]))


def test_a_list_counts_by_its_members_in_a_table_and_in_a_request(tmp_path: Any) -> None:
    fields = (Field("user"), Field("tags", "set"))
    rows = pa.table({"click": [0, 1] * 50, "user": ["u1", "u2"] * 50, "tags": [[1, 2], [3], [2]] * 33 + [[1, 2]]})
    schema = Schema("click", fields, history=HistorySettings(keys=("tags",), parts=("count",)))
    prepare({"train": lambda: iter([rows])}, tmp_path / "data", "click", schema)
    encoder = Encoder.load(tmp_path / "data" / "encoder", Schema.load(tmp_path / "data" / "schema.toml"))
    asked = [{"tags": [1, 2]}, {"tags": [3.0]}, {"tags": ["2"]}, {"tags": [4]}]
    found = RowCoder(encoder).ids(column_of(asked), 4)
    assert (found[:3, -1] > FIRST).all()
    assert found[3, -1] == FIRST
    # Numbers in a table that was never staged are spelt as those of the training rows were.
    lists = pa.table({"user": ["u1"] * 4, "tags": [[1, 2], [3], [2], [4]]})
    np.testing.assert_array_equal(encoder.transform(lists)[:, -1], found[:, -1])


def test_some_fields_are_columns_of_all(encoder: Encoder) -> None:
    coder, rows = RowCoder(encoder), log(7, seed=1)
    whole = coder.ids(column_of(rows), 7)
    for fields in ([0], [2, 3, 5], [1, 7, 8], list(range(6, len(coder.names)))):
        own = coder.layout.without_ranks.columns_of(fields)
        np.testing.assert_array_equal(coder.ids(column_of(rows), 7, fields), whole[:, own])


def test_a_candidate_lies_over_the_context(encoder: Encoder) -> None:
    context, candidates = {"user": "u1", "item": 3}, [{"item": 4}, {"price": 0.5}, {"item": None}]
    column = ranked_column(context, candidates, {"item", "price"})
    assert column("item") == [4, 3, None]
    assert column("user") == ["u1"] * 3
    assert column("price") == [None, 0.5, None]


def test_fields_come_from_their_columns(encoder: Encoder) -> None:
    coder = RowCoder(encoder)
    named = {coder.names[field] for field in coder.fields_of(["item"])}
    assert named == {"item", "user*item:count", "user*item:positives", "user*item:rate"}
    assert {coder.names[f] for f in coder.fields_of(["when"])} == set(coder.names) - {f.name for f in FIELDS}


def test_leaves_come_from_every_column(tmp_path: Any) -> None:
    made = prepared(tmp_path, Schema("click", FIELDS), leaves=2)
    encoder = Encoder.load(made.data / "encoder", Schema.load(made.data / "schema.toml"))
    coder, rows = RowCoder(encoder), log(20, seed=5)
    np.testing.assert_array_equal(
        coder.ids(column_of(rows), 20), np.vstack([transformed(encoder, row) for row in rows])
    )
    assert {coder.names[field] for field in coder.fields_of(["age"])} == {"age", "leaf_1", "leaf_2"}
    fields = coder.fields_of(["age"])
    whole = coder.ids(column_of(rows), 20)
    own = coder.layout.without_ranks.columns_of(fields)
    np.testing.assert_array_equal(coder.ids(column_of(rows), 20, fields), whole[:, own])


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2]])
def test_what_no_field_holds_is_refused(encoder: Encoder, value: Any) -> None:
    with pytest.raises(DataError, match="field 'user' takes a text, a number, true, false or null, found a"):
        RowCoder(encoder).ids(column_of([{"user": value}]), 1)


@pytest.mark.parametrize(
    "settings",
    [
        HistorySettings(keys=("user", "user*item")),
        HistorySettings(keys=("user", "user*item"), time="when"),
        HistorySettings(keys=("user", "price"), time="row"),
        HistorySettings(keys=("user",), time="when", delay=3.0),
        HistorySettings(keys=("user", "item"), time="when", delay=1.0, window=5.0),
        HistorySettings(keys=("user", "item"), time="when", half_life=4.0, interpolate=4),
    ],
    ids=["folds", "time", "row", "delay", "window", "half-life"],
)
def test_events_change_what_is_told_as_a_replay_does(settings: HistorySettings, tmp_path: Any) -> None:
    made = prepared(tmp_path, Schema("click", FIELDS, history=settings))
    encoder = Encoder.load(made.data / "encoder", Schema.load(made.data / "schema.toml"))
    coder, random = RowCoder(encoder), np.random.default_rng(0)
    assert coder.live_history is not None
    changed, time = 0, 250.0
    for row in log(60, seed=2):
        time += float(random.integers(3)) / 2
        asked = {**row, "when": time}
        # What the encoder itself tells, by a copy of the history that has run on.
        told = transformed(encoder, asked)
        np.testing.assert_array_equal(coder.ids(column_of([asked]), 1), told)
        coder.live_history.add(column_of([asked]), float(row["click"]), None)
        later = {**asked, "when": time + 3.5}
        changed += not np.array_equal(coder.ids(column_of([later]), 1), told)
        np.testing.assert_array_equal(coder.ids(column_of([later]), 1), transformed(encoder, later))
    assert changed > 30


def test_the_same_events_leave_the_same_history(everything: Prepared) -> None:
    schema = Schema.load(everything.data / "schema.toml")
    encoders = [Encoder.load(everything.data / "encoder", schema) for _ in range(2)]
    for encoder in encoders:
        past = RowCoder(encoder).live_history
        assert past is not None
        # The third is told late: it counts from the last moment on.
        for row, time in zip(log(3), (300.0, 310.0, 305.0), strict=True):
            past.add(column_of([row]), 1.0, time)
    first, second = (encoder.history for encoder in encoders)
    assert first is not None
    assert second is not None
    assert first.end == second.end == 310.0
    for name, values in first.counts.state().items():
        np.testing.assert_array_equal(values, second.counts.state()[name])


def test_moments() -> None:
    assert moment(3, "when") == moment("3.0", "when") == 3
    assert moment("1e2", "when") == 100
    assert moment("1970-01-02", "when") == 86400
    assert moment(None, "when") is None
    assert moment(math.nan, "when") is None
    with pytest.raises(DataError, match="the time column 'when' must hold numbers, dates") as error:
        moment("soon", "when")
    assert "rows" not in str(error.value)
