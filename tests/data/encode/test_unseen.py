"""How many training rows have a value hidden: as many as the next rows have values that training does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.data.dataset import Dataset, hide_of
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.encode.unseen import ALL_COLUMNS, LEAST_SHARE, LEAST_SHARE_OF_FEW, MOST_SHARE
from fieldwise.data.schema import OTHER, HistorySettings

ROWS = 6000


def churning(share: float) -> pa.Table:
    """Rows in time: users that stay, and in a share of the rows some that are there for a while; items that stay."""
    random = np.random.default_rng(2)
    old, new = random.integers(0, 40, ROWS), 1000 + np.arange(ROWS) // 200
    users = np.where(random.random(ROWS) < share, new, old)
    names = {"click": (random.random(ROWS) < 0.4).astype(int), "user": [f"u{user}" for user in users]}
    return pa.table({**names, "item": [f"i{item}" for item in random.integers(0, 30, ROWS)]})


def prepared(log: pa.Table, out: Path, **settings: Any) -> Dataset:
    prepare({"train": lambda: iter([log])}, out, "click", keep_rows=True, **settings)
    return Dataset.open(out)


def unknown(dataset: Dataset, part: str, field: str = "user") -> float:
    return float((dataset.parts[part].ids[:, dataset.names.index(field)] == OTHER).mean())


def test_as_many_as_the_next_rows_have_new_values(tmp_path: Path) -> None:
    data = prepared(churning(0.07), tmp_path / "time", split=Split(by="row"))
    assert unknown(data, "train") < 0.03 < unknown(data, "valid") < MOST_SHARE
    rows = data.training(seed=0)
    shown = rows.shown(np.arange(rows.rows))
    assert (shown[:, 0] == OTHER).mean() == pytest.approx(unknown(data, "valid"), abs=0.01)
    assert LEAST_SHARE < data.hide["item"] < unknown(data, "valid") < LEAST_SHARE_OF_FEW * 2
    assert (rows.ids == data.parts["train"].ids).all()


def test_most_rows_stay_as_they_are(tmp_path: Path) -> None:
    """Where groups are split, all values of the next rows are new; but known ones need rows to learn from too."""
    data = prepared(churning(0.0), tmp_path / "data", split=Split(group=("user",)))
    assert unknown(data, "valid") == 1
    assert data.hide["user"] == pytest.approx(MOST_SHARE)


def test_values_that_are_rare_already_need_not_be_hidden(tmp_path: Path) -> None:
    """A third of the training rows has a session of its own, as many as of the next rows have a new one."""
    sessions = [f"s{row % 20 if row % 3 else row}" for row in range(ROWS)]
    data = prepared(churning(0.0).append_column("session", [sessions]), tmp_path / "data")
    assert unknown(data, "train", "session") == pytest.approx(1 / 3, abs=0.03)
    assert data.hide.get("session", 0.0) < 0.04


def test_many_columns_share_the_rows_to_be_hidden_in(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = {f"c{number}": [f"v{value}" for value in random.integers(0, 5, 400)] for number in range(30)}
    data = prepared(pa.table({"click": random.integers(0, 2, 400), **columns}), tmp_path / "data")
    assert sum(data.hide.values()) == pytest.approx(ALL_COLUMNS, rel=0.01)


def test_rates_are_hidden_with_the_id(tmp_path: Path) -> None:
    """In the folders of rates: there a value is new if it has no past either."""
    prepared(churning(0.3), tmp_path / "data", split=Split(by="row"))
    for name in ("rates", "order"):
        data = Dataset.open(made(tmp_path / "data" / name))
        rows = data.training(seed=0)
        shown = rows.shown(np.arange(rows.rows))
        gone = shown[:, 0] != rows.ids[:, 0]
        assert gone.mean() > 0.05
        for column in data.layout.columns_of([data.names.index(n) for n in ("user:rate", "user*item:rate")])[::4]:
            assert (shown[gone, column] == 0).all()
            assert (rows.ids[gone, column] != 0).any()


def test_with_the_test_rows_it_is_as_without(tmp_path: Path) -> None:
    """The validation rows are then older than some training rows, and do not say how many values are new."""
    prepared(churning(0.3), tmp_path / "data", split=Split(by="row"))
    for folder in (".", "rates", "order"):
        again = made(tmp_path / "data" / "refit" / folder)
        assert hide_of(again) == hide_of(tmp_path / "data" / folder) != {}


def test_a_history_key_that_is_no_field(tmp_path: Path) -> None:
    history = HistorySettings(("user",), time="row", parts=("rate",))
    schema = prepared(churning(0.0), tmp_path / "plain").schema.without({"user"})
    data = prepared(churning(0.0), tmp_path / "data", schema=schema, split=Split(by="row"), history=history)
    assert set(data.hide) == {"user", "item"}


@pytest.mark.parametrize("settings", [{"gbdt_leaves": 2}], ids=["leaves"])
def test_leaves_of_trees_hang_on_the_values(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert prepared(churning(0.0), tmp_path / "data", **settings).hide == {}


def test_a_folder_of_an_older_version_hides_nothing(tmp_path: Path) -> None:
    data = prepared(churning(0.3), tmp_path / "data").path
    facts = json.loads((data / "data.json").read_text())
    del facts["hide"]
    (data / "data.json").write_text(json.dumps(facts))
    rows = Dataset.open(data).training(seed=0)
    assert np.array_equal(rows.shown(np.arange(rows.rows)), rows.ids)
    assert hide_of(made(data / "refit")) == {}
