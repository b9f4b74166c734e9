"""Cells as they lie in a file have the ids that the columns of a table have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.number import as_number
from fieldwise.data.read import cell_id_loops, cell_loops, formats, line_blocks
from fieldwise.data.read.cells import Cells, cells_of
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.parallel import using
from fieldwise.data.schema import Field, Schema
from tests.conftest import Trained

WORDS = ("a", "b", "abcdefg", "abcdefgh", "abcdefgi", "abcdefgh1", "abcdefgh2", "x" * 40, "x" * 39 + "y", "é", "ab\x00")
SPELT = ("3.0", "3", "-7.0", "True", "true", "False", "x.0", ".0", "Tree", "Fable", "a|b", "b|a|a", " ", "?", "NA")
NUMBERS = ("0", "1", "7", "1023", "1024", "99999999", "100000000", "-1", "-0", "0.5", "2.50", "007", "1e3", "+1", " 1")
ODD_NUMBERS = ("5.", ".5", "-", ".", "1.2.3", "123456789012345", "1234567890123456", "0.1234567890123456", "inf", "1_0")
NO_BLANKS = tuple(word for word in (*WORDS, *SPELT, *NUMBERS, *ODD_NUMBERS) if "\x00" not in word)
FIELDS = (
    Field("word"), Field("number", "numeric"), Field("few", min_count=1), Field("set", "set"),
    Field("hashed", hash_buckets=7), Field("shared", shared_ids=3), Field("between", "numeric", interpolate=4),
    Field("winners", "numeric", buckets="log-square"), Field("plain", "numeric"),
)  # fmt: skip


def encoder_of(draw: random.Random) -> Encoder:
    codes = []
    for field in FIELDS:
        known = draw.sample(NO_BLANKS, draw.randint(0, len(NO_BLANKS)))
        words = list(dict.fromkeys(text_of(word) or "" for word in known))
        words = ["SP0", "SP1", "3", "47"] if field.name == "winners" else words
        bounds = np.sort([draw.choice([0.5, 1, 7, 2.5, 1024, -1, 1e8]) for _ in range(draw.randint(0, 5))])
        state = {"thresholds": bounds.tolist(), "anchors": [0.0, 5.0, 2000.0], "width": 3, "first_size": 0}
        codes.append(field.load(words, state))
    return Encoder(Schema("click", FIELDS), codes)


@pytest.mark.parametrize("threads", [1, 3])
def test_ids_are_those_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    draw, names = random.Random(threads), ["extra", *(field.name for field in FIELDS)]
    wanted = names[1:]
    monkeypatch.setattr(line_blocks, "FEW", 0)
    for number in range(12):
        monkeypatch.setattr(line_blocks, "BLOCK", draw.choice([50, 400, 16 << 20]))
        encoder, rows = encoder_of(draw), [names]
        rows += [[draw.choice(["", *NO_BLANKS]) for _ in names] for _ in range(draw.randint(1, 60))]
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(map(",".join, rows)) + draw.choice(["", "\n"]), encoding="utf-8", newline="")
        with using(threads):
            chunks = list(formats.read_cells(path, wanted, ()))
        assert all(isinstance(chunk, Cells) for chunk in chunks)
        expected = encoder.transform(pa.concat_tables(formats.read([path], wanted)))
        np.testing.assert_array_equal(np.concatenate([encoder.transform(chunk) for chunk in chunks]), expected)


def test_a_column_of_cells_is_that_of_a_table() -> None:
    cells = cells_of("a,é\n,b\nccc,\n".encode(), ["x", "y"], ["y"], ",")
    assert cells is not None
    assert (len(cells), cells.column_names) == (3, ["y"])
    assert (cells["x"].to_pylist(), cells["y"].to_pylist()) == (["a", None, "ccc"], ["é", "b", None])
    assert cells.column("x", np.array([2, 0])).to_pylist() == ["ccc", "a"]


@pytest.mark.parametrize("block", [b"a\n", b"a,b,c\n", b"a,b\nc\nd,e,f\n", b"a,\xff\n", b"a,b\n\n"])
def test_blocks_with_a_fault_are_no_cells(block: bytes) -> None:
    assert cells_of(block, ["x", "y"], ["x", "y"], ",") is None


@given(some.from_regex(r"-?[0-9]{1,16}(\.[0-9]{1,8})?", fullmatch=True))
def test_numbers_are_pythons(text: str) -> None:
    data: Any = np.frombuffer(text.encode() + bytes(cell_loops.ROOM), dtype=np.uint8)
    found = cell_id_loops.decimal(data, 0, len(text))
    digits = len(text.strip("-").replace(".", ""))
    assert found == as_number(text) if digits <= cell_id_loops.DIGITS else np.isnan(found)


@pytest.mark.parametrize("few", [0, line_blocks.FEW])
def test_a_file_is_predicted_as_its_rows_are(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(line_blocks, "FEW", few)
    predictor = Predictor.load(trained.run)
    table = pa.concat_tables(formats.read([trained.log]))
    for ending in ("csv", "tsv", "parquet", "csv.gz"):
        path = tmp_path / f"log.{ending}"
        formats.write(path, iter([table]), lambda step, count: None)
        found = pa.concat_tables(predictor.predict_file(path))
        np.testing.assert_array_equal(found["probability"].to_numpy(), predictor.predict(table))


def test_faults_are_told_as_everywhere(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "FEW", 0)
    predictor, path = Predictor.load(trained.run), tmp_path / "log.csv"
    path.write_text(trained.log.read_text() + "1,u1\n")
    with pytest.raises(DataError, match=r"expected 4 columns, found 2 \(.*log.csv, line 402\)"):
        list(predictor.predict_file(path))
    path.write_text("click,user\n1,u1\n")
    with pytest.raises(DataError, match="column 'price' is missing; the file has: click, user"):
        list(predictor.predict_file(path))
    with pytest.raises(DataError, match="no such file"):
        list(predictor.predict_file(tmp_path / "none.csv"))
