"""The folder of rates inside of a prepared one: the same rows, and no row sees its own label."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.data.dataset import PARTS, Dataset
from fieldwise.data.encode import folds, rates
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import Split
from fieldwise.data.kinds.category import WordCode
from fieldwise.data.kinds.kind import Code
from fieldwise.data.kinds.number import BucketCode, PlaceCode
from fieldwise.data.schema import Field, HistorySettings, Schema
from tests.data.clicks import ROWS, click_log, prepared


@pytest.fixture(autouse=True)
def _enough_positives(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a large log: there are no folds beside the first validation part."""
    monkeypatch.setattr(folds, "ENOUGH", 0)


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return click_log()


def test_the_same_rows_with_more_fields(log: pa.Table, tmp_path: Path) -> None:
    facts = prepared(log, tmp_path / "one", threads=1)
    prepared(log, tmp_path / "two", threads=2)
    plain, told = Dataset.open(tmp_path / "one"), Dataset.open(tmp_path / "one" / "rates")
    assert facts["rows_kept_for"] == ("rates", "order", "refit")
    assert told.names == [*plain.names, "user:rate", "item:rate", "user*item:rate"]
    for part in PARTS:
        np.testing.assert_array_equal(plain.parts[part].labels, told.parts[part].labels)
        np.testing.assert_array_equal(plain.parts[part].ids[:, :2], told.parts[part].ids[:, :2])
    assert told.layout.widths == (1, 1, 8, 4, 4, 4)
    assert plain.layout.widths == (1, 1, 1)
    other = Dataset.open(tmp_path / "two" / "rates")
    np.testing.assert_array_equal(told.parts["train"].ids, other.parts["train"].ids)


def test_both_kinds_of_rates_tell_held_out_rows_the_same(log: pa.Table, tmp_path: Path) -> None:
    prepared(log, tmp_path / "out")
    folds, order = (Dataset.open(tmp_path / "out" / name) for name in ("rates", "order"))
    assert (folds.names, folds.layout) == (order.names, order.layout)
    for part in ("valid", "test"):
        np.testing.assert_array_equal(folds.parts[part].ids, order.parts[part].ids)
    assert (folds.parts["train"].ids[:, -12:] != order.parts["train"].ids[:, -12:]).any()
    np.testing.assert_array_equal(folds.parts["train"].ids[:, :-12], order.parts["train"].ids[:, :-12])


@pytest.mark.parametrize("name", ["rates", "order"])
def test_no_training_row_sees_its_own_label(log: pa.Table, tmp_path: Path, name: str) -> None:
    """Another label of one row changes what other rows are told, never what it is told itself."""
    split = Split(by="row")
    row, clicks = 17, log["click"].to_pylist()
    clicks[row] = 1 - clicks[row]
    prepared(log, tmp_path / "one", split=split)
    prepared(log.set_column(0, "click", [clicks]), tmp_path / "other", split=split)
    one, other = (Dataset.open(tmp_path / side / name).parts for side in ("one", "other"))
    np.testing.assert_array_equal(one["train"].ids[row], other["train"].ids[row])
    assert (one["train"].ids != other["train"].ids).any()
    assert (one["valid"].ids != other["valid"].ids).any()


def test_held_out_labels_tell_nothing(log: pa.Table, tmp_path: Path) -> None:
    split = Split((0.5, 0.25, 0.25), by="row")
    clicks = np.array(log["click"].to_pylist())
    clicks[ROWS // 2 :] = np.random.default_rng(0).integers(0, 2, ROWS // 2)
    prepared(log, tmp_path / "one", split=split)
    prepared(log.set_column(0, "click", [clicks]), tmp_path / "other", split=split)
    one, other = (Dataset.open(tmp_path / name / "rates").parts for name in ("one", "other"))
    for part in PARTS:
        np.testing.assert_array_equal(one[part].ids, other[part].ids)


@pytest.mark.parametrize(
    "settings",
    [
        {"history": HistorySettings(("user",))},
        {"keep_negatives": 0.5},
        {"schema": Schema("click", (Field("price", "numeric", max_buckets=9),))},
    ],
    ids=["a history", "fewer negatives", "no category, and numbers as they were asked for"],
)
def test_where_there_is_none(log: pa.Table, tmp_path: Path, settings: dict[str, Any]) -> None:
    assert "rates" not in prepared(log, tmp_path / "out", **settings)["rows_kept_for"]
    assert not made(tmp_path / "out" / "rates").exists()


def test_numbers_alone_are_finer_too(log: pa.Table, tmp_path: Path) -> None:
    """Networks read numbers as places between few buckets, on a log without categories as on any other."""
    found = prepared(log, tmp_path / "out", schema=Schema("click", (Field("price", "numeric"),)))
    assert found["rows_kept_for"][:1] == ("rates",)
    assert "order" not in found["rows_kept_for"]
    layout = Dataset.open(made(tmp_path / "out" / "rates")).layout
    assert (layout.fields, layout.widths) == (1, (rates.NUMBER_STEPS,))
    assert layout.ranked == Dataset.open(tmp_path / "out").layout.ranked


def test_many_rows_need_none(log: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_ROWS", 100)
    assert prepared(log, tmp_path / "out")["rows_kept_for"] == ()
    assert not (tmp_path / "out" / "rows").exists()


def test_keys_of_a_schema() -> None:
    few = Schema(
        "y", (Field("a"), Field("b"), Field("n", "numeric"), Field("tags", "set"), Field("a*b"), Field("auto"))
    )
    assert rates.usual_history(few).keys == ("a", "b", "a*b")
    many = Schema("y", tuple(Field(f"f{number}") for number in range(rates.MOST_CROSSED + 1)))
    assert len(rates.usual_history(many).keys) == rates.MOST_CROSSED + 1
    assert rates.usual_history(few, ("n",)).group == ("n",)


def test_rows_of_one_event_are_in_one_fold(tmp_path: Path) -> None:
    """A positive and two negatives of one user and moment: what the others say would give the label away."""
    random = np.random.default_rng(1)
    events = np.repeat(np.arange(800), 3)
    table = pa.table(
        {
            "click": np.tile([1, 0, 0], 800),
            "user": [f"u{event % 100}" for event in events],
            "place": [f"p{event}" for event in events],
            "item": [f"i{item}" for item in random.integers(0, 40, len(events))],
        }
    )
    facts = prepared(table, tmp_path / "out")
    assert set(facts["leak"]["alike_in"]) == {"user", "place"}
    for name in ("rates", "order"):
        assert set(Dataset.open(tmp_path / "out" / name).schema.history.group) == {"user", "place"}


def test_what_the_plain_folder_has_is_not_encoded_again(
    log: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three staged files in the plain folder and three in `refit`; the finer numbers of rates once more in each, and
    the ranks of numbers beside both."""
    encoded: Counter[str] = Counter()
    for kind in (WordCode, PlaceCode, BucketCode):

        def counting(code: Code, column: pa.ChunkedArray, plain: Any = kind.column_ids) -> Any:
            encoded[code.field.name] += 1
            return plain(code, column)

        monkeypatch.setattr(kind, "column_ids", counting)
    prepared(log, tmp_path / "out")
    assert encoded == {"user": 6, "item": 6, "price": 24}


def test_too_many_cells_have_no_rates_and_one_line_says_so(
    log: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "MOST_CELLS", 2000)
    facts = prepared(log, tmp_path / "out")
    found = f"found {facts['rows']['train']:,} training rows x 3 fields"
    refused = "there will be no folders rates, order and refit: they take 2,000 cells at most"
    assert f"{refused}, {found}" in facts["notes"]
    assert facts["rows_kept_for"] == ()
    assert not [name for name in ("rows", "rates", "order", "refit") if (tmp_path / "out" / name).exists()]
