"""Prepared folders: what is written is mapped back; damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fieldwise.config.errors import BundleError, ConfigError, FieldwiseError
from fieldwise.data.dataset import Dataset, array_file
from tests.conftest import ROWS, Trained


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Path:
    shutil.copytree(trained.data, tmp_path / "data")
    return tmp_path / "data"


def test_open(trained: Trained) -> None:
    found = Dataset.open(trained.data)
    assert sum(part.rows for part in found.parts.values()) == ROWS
    assert found.schema.names == ["user", "price", "tags"]
    assert found.layout.widths == (1, 1, 3)
    for part in found.parts.values():
        assert isinstance(part.ids, np.memmap)
        assert part.ids.dtype == np.int32
        assert part.ids.shape == (part.rows, found.layout.columns)
        assert part.weights is None
    assert Dataset.open(trained.data).fingerprint == found.fingerprint


def test_rows_are_appended(tmp_path: Path) -> None:
    rows = np.arange(12).reshape(6, 2)
    with array_file(tmp_path / "part" / "ids.npy", np.int32, (6, 2)) as file:
        for first in (0, 1, 4):
            file.append(rows[first : {0: 1, 1: 4, 4: 6}[first]])
    found = np.load(tmp_path / "part" / "ids.npy")
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("name", ["data.json", "train/ids.npy", "valid/labels.npy"])
@pytest.mark.parametrize("left", [None, 0, 100])
def test_missing_or_cut_files(copied: Path, name: str, left: int | None) -> None:
    file = copied / name
    content = file.read_bytes()
    file.unlink()
    if left is not None:
        file.write_bytes(content[:left])
    with pytest.raises(BundleError, match=r"not a folder that `fieldwise prepare` wrote.*data\)"):
        Dataset.open(copied)


@pytest.mark.parametrize("content", ["[]", "{}", '"text"', '{"sizes": 1}', "not json"])
def test_foreign_facts(copied: Path, content: str) -> None:
    (copied / "data.json").write_text(content)
    with pytest.raises(BundleError, match="not a folder that `fieldwise prepare` wrote"):
        Dataset.open(copied)


def test_parts_of_another_length(copied: Path) -> None:
    labels = np.load(copied / "train" / "labels.npy")
    np.save(copied / "train" / "weights.npy", np.ones(3, dtype=np.float32))
    with pytest.raises(BundleError, match="part 'train' is damaged"):
        Dataset.open(copied)
    (copied / "train" / "weights.npy").unlink()
    np.save(copied / "train" / "labels.npy", labels[:-1])
    with pytest.raises(BundleError, match="part 'train' is damaged"):
        Dataset.open(copied)


def test_no_pickles(copied: Path) -> None:
    np.save(copied / "train" / "labels.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BundleError):
        Dataset.open(copied)


def test_a_damaged_schema(copied: Path) -> None:
    (copied / "schema.toml").write_text("label")
    with pytest.raises(ConfigError, match=r"not a TOML file.*schema\.toml"):
        Dataset.open(copied)


def test_any_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FieldwiseError, match="not a folder that `fieldwise prepare` wrote"):
            Dataset.open(path)


def test_other_rows_have_another_fingerprint(copied: Path) -> None:
    before = Dataset.open(copied).fingerprint
    facts = json.loads((copied / "data.json").read_text())
    (copied / "data.json").write_text(json.dumps(facts | {"digest": "other"}))
    assert Dataset.open(copied).fingerprint != before
