"""Vocabularies and thresholds of many columns: the same whichever are counted together, in few statements."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from fieldwise.config.errors import OddCell
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import fit
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import Field, Schema

ROWS, TRAINING = 30, 24
IN_ORDER = Split((0.8, 0.1, 0.1), by="row")


def wide(columns: int, seed: int = 0) -> pa.Table:
    """Categories, numbers and sets in turn."""
    rng = np.random.default_rng(seed)
    table: dict[str, Any] = {"click": np.arange(ROWS) % 2}
    for number in range(columns):
        values = rng.integers(0, 6, (ROWS, 2))
        cells = {
            "c": [f"v{value}" for value, _ in values],
            "n": (values[:, 0] / 4).round(2).tolist(),
            "s": [f"a{one}|b{other}" for one, other in values],
        }
        kind = "cns"[number % 3]
        table[f"{kind}{number}"] = pa.array([str(cell) for cell in cells[kind]])
    return pa.table(table)


def prepared(table: pa.Table, out: Path, schema: Schema | None = None, **more: Any) -> dict[str, Any]:
    return prepare({"train": lambda: iter([table])}, out, "click", schema, IN_ORDER, **more)


def slow_ids(cells: list[str], kind: str) -> list[list[int]]:
    """The ids of a column's cells, from the definition."""
    if kind == "n":
        values = sorted({float(cell) for cell in cells[:TRAINING]})
        return [[2 + sum(float(cell) > bound for bound in values[:-1])] for cell in cells]
    members = [list(dict.fromkeys(cell.split("|"))) if kind == "s" else [cell] for cell in cells]
    counts = Counter(member for cell in members[:TRAINING] for member in cell)
    known = sorted((member for member, n in counts.items() if n >= 2), key=lambda member: (-counts[member], member))
    found = [list(dict.fromkeys(known.index(m) + 2 if m in known else 1 for m in cell)) for cell in members]
    return [ids + [-1] * (max(map(len, members[:TRAINING])) - len(ids)) for ids in found]


def test_ids_of_a_wide_file(tmp_path: Path) -> None:
    table = wide(1500)
    facts = prepared(table, tmp_path / "data")
    assert [field["kind"] for field in facts["fields"].values()] == ["categorical", "numeric", "set"] * 500
    data = Dataset.open(tmp_path / "data")
    found = np.concatenate([data.parts[part].ids for part in ("train", "valid", "test")])
    expected = [np.array(slow_ids(table[name].to_pylist(), name[0])) for name in data.names]
    np.testing.assert_array_equal(found, np.hstack(expected))


class Spy:
    """A connection that keeps the text of each statement."""

    def __init__(self, base: Any, heard: list[str]) -> None:
        self.base, self.heard = base, heard

    def __enter__(self) -> Spy:
        return self

    def __exit__(self, *why: object) -> None:
        self.base.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def execute(self, query: str) -> Any:
        self.heard.append(query)
        return self.base.execute(query)

    def sql(self, query: str) -> Any:
        self.heard.append(query)
        return self.base.sql(query)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    queries: list[str] = []
    connect = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda *given, **more: Spy(connect(*given, **more), queries))
    return queries


def test_statements_do_not_grow_with_columns_and_their_text_grows_in_line(tmp_path: Path, heard: list[str]) -> None:
    """A statement costs by the columns of the file, whichever it counts: one for each column would be quadratic."""
    prepared(wide(300), tmp_path / "few")
    few = [len(query) for query in heard]
    heard.clear()
    prepared(wide(1200), tmp_path / "many")
    many = [len(query) for query in heard]
    assert 5 < len(few) == len(many) < 20
    assert sum(many) < 4.6 * sum(few)


KINDS = {
    "whole": (Field("whole"), [1, 2, 2, 3, None, 3]),
    "part": (Field("part", min_count=1), [0.5, 2.0, 2.0, 3.0, None, 0.25]),
    "yes": (Field("yes"), [True, False, True, None, True, True]),
    "respelt": (Field("respelt"), ["3", "3.0", "True", "true", "4.0", "x"]),
    "other": (Field("other"), ["3", "4", "5", "4.0", "x", None]),
    "rare": (Field("rare", min_count=4), ["a", "b", "a", "a", "a", "b"]),
    "hashed": (Field("hashed", hash_buckets=7), ["a", "b", "c", "a", "e", "f"]),
    "shared": (Field("shared", shared_ids=2, min_count=1), ["a", "b", "c", "a", "e", "f"]),
    "bars": (Field("bars", "set"), ["a|b", "b|c", None, "a", "a|a|c", "b"]),
    "dots": (Field("dots", "set", separator=";", max_values=2), ["a;b;c", "b|c", None, "a", "a;c", "b"]),
    "list": (Field("list", "set"), [["a", "b"], ["b"], [], None, ["a", "3.0"], ["3", "c"]]),
    "hashes": (Field("hashes", "set", hash_buckets=5), ["a|b", "b|c", None, "a", "a|b|c", "b"]),
    "words": (Field("words", "numeric"), ["1", "2.5", "NA", "2.50", None, "inf"]),
    "count": (Field("count", "numeric"), [5, 6, 7, 5, None, 9]),
    "logs": (Field("logs", "numeric", buckets="log-square"), [1, 60, 70, 50, 50, 1]),
    "mixed": (Field("mixed", "numeric", interpolate=4), [0.1, 0.6, 0.2, 0.4, None, 1.5]),
}


@pytest.mark.parametrize("grown", [False, True])
def test_columns_counted_together_and_alone_give_the_same(
    grown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the columns of each kind, so that each has another beside it."""
    columns = {f"{name}{copy}": (field, cells) for name, (field, cells) in KINDS.items() for copy in (1, 2)}
    schema = Schema("click", tuple(replace(field, name=name) for name, (field, _) in columns.items()))
    table = pa.table({name: pa.array(cells * 5) for name, (_, cells) in columns.items()})
    table = table.append_column("click", pa.array(np.arange(30) % 2))
    known = None
    if grown:
        prepared(table.slice(12), tmp_path / "before", schema)
        known = Encoder.load(tmp_path / "before" / "encoder", schema)
    prepared(table, tmp_path / "together", schema, known=known)
    monkeypatch.setattr(fit, "GROUP_COLUMNS", 1)
    prepared(table, tmp_path / "alone", schema, known=known)
    for file in ("encoder/encoder.json", "encoder/vocabulary.parquet", "train/ids.npy", "test/ids.npy", "schema.toml"):
        assert (tmp_path / "together" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes(), file


def test_the_field_with_a_cell_that_is_no_number_is_named(tmp_path: Path) -> None:
    table = pa.table({"click": np.arange(ROWS) % 2} | {f"n{k}": [str(n) for n in range(ROWS)] for k in range(9)})
    for name, text in (("n4", "cheap"), ("n6", "also cheap")):
        cells = table[name].to_pylist()
        table = table.set_column(table.column_names.index(name), name, [[*cells[:3], "NA", text, *cells[5:]]])
    schema = Schema("click", tuple(Field(f"n{k}", "numeric") for k in range(9)))
    with pytest.raises(OddCell, match="field 'n4' is numeric, found 'cheap'"):
        prepared(table, tmp_path / "data", schema)
    assert not (tmp_path / "data").exists()
