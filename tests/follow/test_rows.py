"""The rows of several files by their numbers."""

from functools import partial

import pyarrow as pa
import pytest

from fieldwise.config.errors import DataError
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import Field, Schema
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


def test_rows_of_other_types_are_prepared_as_if_they_were_texts(tmp_path):
    """A column of numbers on one day, of texts on another, of lists on a third."""
    schema = Schema("click", (Field("user", min_count=1), Field("price", "numeric"), Field("tags", "set", min_count=1)))
    days = [
        {"user": [7, 8, None, 2**60 + 1], "price": [1, 2, 3, 4], "tags": ["a|b", "", None, "c"]},
        {"user": ["7", "u1", "", "x"], "price": [1.5, None, 2.5, 4.0], "tags": [["a", "c"], [], None, ["b"]]},
        {"user": [7.0, 8.0, None, 2.5], "price": ["1.5", "", "2.5", "4.0"], "tags": ["b", "a|b", "c", "a"]},
    ]
    files = []
    for number, columns in enumerate(days, 1):
        rows.write(rows.path_of(tmp_path, number), [pa.table({**columns, "click": [1, 0, 1, 0]})])
        files.append(Taken(f"{number}.csv", number, 1, 1, "", 4, 4 * number - 4, ""))
    plain = [
        {"user": ["7", "8", None, str(2**60 + 1)], "price": ["1", "2", "3", "4"], "tags": ["a|b", "", None, "c"]},
        {"user": ["7", "u1", "", "x"], "price": ["1.5", None, "2.5", "4.0"], "tags": ["a|c", "", None, "b"]},
        {"user": ["7", "8", None, "2.5"], "price": ["1.5", None, "2.5", "4.0"], "tags": ["b", "a|b", "c", "a"]},
    ]
    sources = (
        partial(rows.alike, tmp_path, files, 0, 12, schema),
        lambda: iter([pa.table({**columns, "click": [1, 0, 1, 0]}) for columns in plain]),
    )
    for name, source in zip(("found", "expected"), sources, strict=True):
        prepare({"train": source}, tmp_path / name, "click", schema, Split((1.0, 0.0, 0.0)))
    for file in ("train/ids.npy", "train/labels.npy", "schema.toml", "encoder/lifetimes.npz"):
        assert (tmp_path / "found" / file).read_bytes() == (tmp_path / "expected" / file).read_bytes()
    (one,) = rows.alike(tmp_path, files, 4, 8, schema)
    assert one.schema == pa.table({**days[1], "click": [1] * 4}).schema


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:50]), lambda path: path.unlink()])
def test_damaged_rows_are_one_line(tmp_path, monkeypatch, damage):
    files = kept(tmp_path, monkeypatch, (7, 5))
    damage(rows.path_of(tmp_path, 2))
    with pytest.raises(DataError, match=r"the rows that were kept of 2.csv are damaged: "):
        list(rows.read(tmp_path, files, 0, 12))


def test_rows_of_weight_0_do_not_count(tmp_path):
    schema = Schema("click", (Field("user"),), weight="w")
    chunk = pa.table({"click": [1, 0, 1, 0], "w": [1.0, 0.0, 0.0, 2.5]})
    assert rows.labels_of(schema, lambda: iter([chunk])).tolist() == [1, 0]
    assert rows.labels_of(schema, lambda: iter([])).tolist() == []


def test_no_rows_leave_no_file(tmp_path):
    with pytest.raises(DataError, match="there are no rows"):
        rows.write(tmp_path / "rows" / "1.parquet", [])
    assert list((tmp_path / "rows").iterdir()) == []
