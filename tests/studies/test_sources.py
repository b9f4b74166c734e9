"""The rows of a world, for studies."""

import sys
from pathlib import Path

import pytest

from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.split import Split
from fieldwise.data.schema import HistorySettings
from fieldwise.studies import sources


def test_a_study_makes_its_rows_without_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    sources.world("demo", 2_000)(tmp_path / "data")
    data = Dataset.open(tmp_path / "data")
    assert sum(part.rows for part in data.parts.values()) == 2_000
    assert "day" not in data.names
    sources.world("demo", 2_000, split=Split(by="row"))(tmp_path / "by row")
    with pytest.raises(ImportError):
        sources.world("demo", 2_000, history=HistorySettings(("user",), time="row"))(tmp_path / "text")
