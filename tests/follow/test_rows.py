"""The rows of several files by their numbers."""

import pyarrow as pa
import pytest

from fieldwise.config.errors import DataError
from fieldwise.data.kinds.category import CategoryField
from fieldwise.data.schema import Schema
from fieldwise.follow import rows
from fieldwise.follow.journal import Taken


def kept(folder, monkeypatch, counts):
    monkeypatch.setattr(rows, "STEP", 4)
    files, first = [], 0
    for number, count in enumerate(counts, 1):
        chunks = [pa.table({"n": list(range(first, first + count))})] if count else []
        if chunks:
            assert rows.write(rows.path_of(folder, number), chunks) == count
        files.append(Taken(f"{number}.csv", number, 1, 1, "", count, first, ""))
        first += count
    return files


def test_a_stretch_of_rows_is_what_lies_between_its_numbers(tmp_path, monkeypatch):
    files = kept(tmp_path, monkeypatch, (7, 0, 1, 9))
    for first in range(18):
        for end in range(first, 18):
            found = [n for chunk in rows.read(tmp_path, files, first, end) for n in chunk["n"].to_pylist()]
            assert found == list(range(first, end))


def test_files_go_when_all_of_their_rows_are_learnt(tmp_path, monkeypatch):
    files = kept(tmp_path, monkeypatch, (7, 1, 9))
    for before, oldest in ((6, 0), (7, 7), (8, 8), (17, 17)):
        rows.drop(tmp_path, files, before)
        assert rows.oldest(tmp_path, files) == oldest


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:50]), lambda path: path.unlink()])
def test_damaged_rows_are_one_line(tmp_path, monkeypatch, damage):
    files = kept(tmp_path, monkeypatch, (7, 5))
    damage(rows.path_of(tmp_path, 2))
    with pytest.raises(DataError, match=r"the rows that were kept of 2.csv are damaged: "):
        list(rows.read(tmp_path, files, 0, 12))


def test_rows_of_weight_0_do_not_count(tmp_path):
    schema = Schema("click", (CategoryField("user"),), weight="w")
    chunk = pa.table({"click": [1, 0, 1, 0], "w": [1.0, 0.0, 0.0, 2.5]})
    assert rows.labels_of(schema, lambda: iter([chunk])).tolist() == [1, 0]
    assert rows.labels_of(schema, lambda: iter([])).tolist() == []


def test_no_rows_leave_no_file(tmp_path):
    with pytest.raises(DataError, match="there are no rows"):
        rows.write(tmp_path / "rows" / "1.parquet", [])
    assert list((tmp_path / "rows").iterdir()) == []
