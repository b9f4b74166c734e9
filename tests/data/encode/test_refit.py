"""The folder inside of a prepared one in which the test rows are training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import folds
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import HistorySettings
from tests.data.clicks import ROWS, click_log, prepared


@pytest.fixture(autouse=True)
def _enough_positives(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a large log: there are no folds beside the first validation part."""
    monkeypatch.setattr(folds, "ENOUGH", 0)


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return click_log()


def test_it_is_what_prepare_leaves_of_the_same_rows_without_a_test_part(log: pa.Table, tmp_path: Path) -> None:
    """Split by a column that names the parts: once as it is, once with `train` in the place of `test`."""
    parts = np.random.default_rng(1).choice(["train", "valid", "test"], ROWS, p=[0.7, 0.15, 0.15])
    joined = np.where(parts == "test", "train", parts)
    for name, own in (("out", parts), ("plain", joined)):
        prepared(log.append_column("part", [own]), tmp_path / name, split=Split(by="part"))
    assert not (tmp_path / "plain" / "refit").exists()
    for folder in (".", "rates"):
        found, wanted = (Dataset.open(tmp_path / name / folder) for name in ("out/refit", "plain"))
        assert list(found.parts) == ["train", "valid"]
        assert found.schema == wanted.schema
        assert found.layout == wanted.layout
        np.testing.assert_array_equal(found.parts["valid"].ids, wanted.parts["valid"].ids)
        assert found.parts["train"].rows == wanted.parts["train"].rows == (joined == "train").sum()
        # The rows of a chunk come part after part, and with them the folds of the rates.
        same = slice(None) if folder == "." else slice(0, 2)
        rows = [sorted(map(tuple, one.parts["train"].ids[:, same])) for one in (found, wanted)]
        assert rows[0] == rows[1]


def test_no_row_sees_its_own_label(log: pa.Table, tmp_path: Path) -> None:
    """Another label of a row that was a test row changes what others are told, never what it is told itself."""
    clicks = log["click"].to_pylist()
    clicks[-1] = 1 - clicks[-1]
    split = Split(by="row")
    prepared(log, tmp_path / "one", split=split)
    prepared(log.set_column(0, "click", [clicks]), tmp_path / "other", split=split)
    one, other = (Dataset.open(tmp_path / name / "refit" / "rates").parts for name in ("one", "other"))
    assert one["train"].labels[-1] != other["train"].labels[-1]
    np.testing.assert_array_equal(one["train"].ids[-1], other["train"].ids[-1])
    assert (one["train"].ids != other["train"].ids).any()


@pytest.mark.parametrize(
    "settings",
    [{"history": HistorySettings(("user",))}, {"keep_negatives": 0.5}, {"split": Split((0.9, 0.1, 0.0))}],
    ids=["a history", "fewer negatives", "no test part"],
)
def test_where_there_is_none(log: pa.Table, tmp_path: Path, settings: dict[str, Any]) -> None:
    assert "refit" not in prepared(log, tmp_path / "out", **settings)["rows_kept_for"]
    assert not (tmp_path / "out" / "refit").exists()


def test_test_rows_of_the_user_stay_out(log: pa.Table, tmp_path: Path) -> None:
    sources = {"train": lambda: iter([log]), "test": lambda: iter([log.slice(0, 100)])}
    for shares in ((0.8, 0.2, 0.0), (0.8, 0.1, 0.1)):
        out = tmp_path / str(shares[1])
        facts = prepare(sources, out, "click", split=Split(shares), keep_rows=True)
        assert facts["rows_kept_for"] == ("rates", "order")
