"""Rows and files that are not what they should be: one line and exit code 2, or skipped, counted and told."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise import cli
from fieldwise.data.read import streams
from fieldwise.data.recipes.criteo import COLUMNS
from fieldwise.data.world.layouts import Simulation, write_raw

GOOD = "click,user,price\n" + "0,a,1.5\n1,b,2\n" * 20
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command: its exit code, what it printed, and what it complained of."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def refused(call: Call, tmp_path: Path) -> Callable[..., str]:
    """Prepares what must be refused: its one line, with nothing left behind."""

    def run(*arguments: object) -> str:
        (tmp_path / "out").mkdir(exist_ok=True)
        code, _, told = call("prepare", *arguments, "--out", tmp_path / "out" / "data")
        assert (code, len(told.splitlines())) == (2, 1), told
        assert list((tmp_path / "out").iterdir()) == []
        return told

    return run


@pytest.fixture
def prepared(call: Call, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Prepares what must pass: its facts."""

    def run(*arguments: object) -> dict[str, Any]:
        code, printed, told = call("prepare", *arguments, "--out", tmp_path / "data", "--force", "--json")
        assert code == 0, told
        found: dict[str, Any] = json.loads(printed)
        return found

    return run


def save(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def criteo_lines(count: int = 60) -> list[str]:
    rng = np.random.default_rng(1)
    return [
        "\t".join([str(n % 2), *map(str, rng.integers(50, size=13)), *(f"{c:08x}" for c in rng.integers(9, size=26))])
        for n in range(count)
    ]


def packed(path: Path, text: str) -> bytes:
    return {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(text.encode())


# A row of the wrong length.


@pytest.mark.parametrize(
    ("name", "cells"), [("train.txt", 39), ("train.txt", 41), ("train.txt.gz", 12), ("train.txt.bz2", 39)]
)
def test_a_short_row_of_a_recipe_names_file_and_line(
    refused: Callable[..., str], prepared: Callable[..., dict[str, Any]], tmp_path: Path, name: str, cells: int
) -> None:
    lines = criteo_lines()
    whole = prepared(save(tmp_path / "whole.txt", "\n".join(lines) + "\n"), "--recipe", "criteo")
    lines.insert(17, "\t".join(["1"] * cells))
    path = tmp_path / name
    save(path, packed(path, "\n".join(lines) + "\n"))
    assert f"expected 40 columns, found {cells} ({path}, line 18)" in refused(path, "--recipe", "criteo")
    skipped = prepared(path, "--recipe", "criteo", "--on-bad-rows", "skip")
    reason = f"expected 40 columns, found {cells}"
    assert skipped["skipped_rows"] == [
        {"file": str(path), "rows": 1, "reasons": [{"reason": reason, "rows": 1, "first": ["line 18"]}]}
    ]
    assert f"skipped 1 row of {path}: {reason} (line 18)" in skipped["notes"]
    assert {key: skipped[key] for key in ("rows", "positive_rate", "fields")} == {
        key: whole[key] for key in ("rows", "positive_rate", "fields")
    }


def test_skipped_rows_of_a_csv(
    refused: Callable[..., str], prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    path = save(tmp_path / "a.csv", GOOD + "1\n" + "0,c,3\n" + "1,b,2,7\n" * 7)
    assert f"expected 3 columns, found 1 ({path}, line 42)" in refused(path, "--label", "click")
    facts = prepared(path, "--label", "click", "--on-bad-rows", "skip")
    assert sum(facts["rows"].values()) == 41
    (told,) = facts["skipped_rows"]
    assert told["rows"] == 8
    assert [(one["rows"], one["first"]) for one in told["reasons"]] == [
        (1, ["line 42"]),
        (7, ["line 44", "line 45", "line 46", "line 47", "line 48"]),
    ]


def test_people_are_told_of_skipped_rows(call: Call, tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", GOOD + "1\n")
    code, _, told = call("prepare", path, "--label", "click", "--on-bad-rows", "skip", "--out", tmp_path / "data")
    assert code == 0
    assert f"note: skipped 1 row of {path}: expected 3 columns, found 1 (line 42)" in told


def test_labels_and_numbers_are_skipped_too(
    refused: Callable[..., str], prepared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    fields = '[[field]]\nname = "user"\n\n[[field]]\nname = "price"\nkind = "numeric"\n'
    schema = save(tmp_path / "schema.toml", 'label = "click"\n' + fields)
    path = save(tmp_path / "a.csv", GOOD + "2,a,1\n,a,1\n1,b,cheap\n")
    said = [path, "--schema", schema]
    assert f"label 'click' must be 0 or 1, found '2' ({path}, line 42)" in refused(*said)
    facts = prepared(*said, "--on-bad-rows", "skip")
    assert sum(facts["rows"].values()) == 40
    assert [one["reason"] for one in facts["skipped_rows"][0]["reasons"]] == [
        "label 'click' must be 0 or 1, found '2'",
        "label 'click' must be 0 or 1, found nothing",
        "'price' must be a number, found 'cheap'",
    ]


def test_sparse_lines_are_skipped(prepared: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    lines = [f"{n % 2} {n % 3}:1 {5 + n % 4}:1" for n in range(40)]
    lines[7], lines[9] = "1 2:1", "1 2:1 3"
    facts = prepared(save(tmp_path / "a.libsvm", "\n".join(lines)), "--label", "label", "--on-bad-rows", "skip")
    assert sum(facts["rows"].values()) == 38
    assert [one["first"] for one in facts["skipped_rows"][0]["reasons"]] == [["line 8"], ["line 10"]]


@pytest.mark.parametrize("by", ["row", "price"])
def test_a_file_read_twice_counts_its_bad_rows_once(
    prepared: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    # In several chunks: rows of the later ones were counted once more by the reading that a column was counted in.
    monkeypatch.setattr(streams, "CHUNK_ROWS", 10)
    path = save(tmp_path / "a.csv", GOOD + "1\n" + "2,a,1\n")
    facts = prepared(path, "--label", "click", "--split-by", by, "--on-bad-rows", "skip")
    assert facts["skipped_rows"][0]["rows"] == 2


def test_nothing_but_bad_rows(refused: Callable[..., str], tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", "click,user\n" + "1\n" * 30)
    assert "there are no training rows" in refused(path, "--label", "click", "--on-bad-rows", "skip")


def test_no_third_way(refused: Callable[..., str], tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", GOOD)
    line = refused(path, "--label", "click", "--on-bad-rows", "ignore")
    assert "--on-bad-rows takes stop or skip, found 'ignore'" in line


def test_good_rows_are_never_skipped(prepared: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", GOOD)
    strict = prepared(path, "--label", "click")
    lenient = prepared(path, "--label", "click", "--on-bad-rows", "skip")
    assert strict == lenient
    assert lenient["skipped_rows"] == []


# A column of the wrong type, an empty file, files that differ, files cut in the middle.


def test_text_in_a_column_of_numbers(refused: Callable[..., str], tmp_path: Path) -> None:
    lines = criteo_lines()
    lines[30] = lines[30].replace("\t", "\tmany\t", 1).rpartition("\t")[0]
    path = save(tmp_path / "train.txt", "\n".join(lines) + "\n")
    line = refused(path, "--recipe", "criteo")
    assert f"field 'I1' is numeric, found 'many' ({path}, line 31); mend it" in line


def test_an_odd_cell_is_found_in_the_second_file(refused: Callable[..., str], tmp_path: Path) -> None:
    one, other = save(tmp_path / "a.csv", GOOD), save(tmp_path / "b.csv", GOOD + "2,a,1\n")
    assert f"found '2' ({other}, line 42)" in refused(one, other, "--label", "click")
    packed = save(tmp_path / "c.csv.gz", gzip.compress((GOOD + "2,a,1\n").encode(), mtime=0))
    assert f"found '2' ({packed}, row 41)" in refused(one, packed, "--label", "click")
    renamed = save(tmp_path / "d.csv", GOOD.replace("user", "person", 1))
    assert f"column 'user' is missing; there are: click, person, price ({renamed})" in refused(
        one, "--test", renamed, "--label", "click"
    )


@pytest.mark.parametrize("content", ["", "\n", gzip.compress(b"", mtime=0)], ids=["nothing", "a line end", "gzip"])
def test_an_empty_file(refused: Callable[..., str], tmp_path: Path, content: str | bytes) -> None:
    path = save(tmp_path / "train.txt", content)
    assert f"the file is empty, or its first line is ({path})" in refused(path, "--recipe", "criteo")


def test_files_with_different_columns(refused: Callable[..., str], tmp_path: Path) -> None:
    one = save(tmp_path / "a.txt", "\n".join(criteo_lines()) + "\n")
    other = save(tmp_path / "b.txt", "\n".join(line.partition("\t")[2] for line in criteo_lines()) + "\n")
    line = refused(one, other, "--recipe", "criteo")
    assert "recipe 'criteo' found no label 'label' in the file: I1, I2" in line
    assert str(other) in line


@pytest.mark.parametrize("on_bad_rows", ["stop", "skip"])
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_packed_file_cut_in_the_middle(
    refused: Callable[..., str], tmp_path: Path, pack: Callable[[bytes], bytes], on_bad_rows: str
) -> None:
    rng = np.random.default_rng(0)
    lines = ["\t".join(["0", *["1"] * 13, *(f"{c:08x}" for c in rng.integers(2**31, size=26))]) for _ in range(4000)]
    whole = pack("\n".join(lines).encode())
    path = save(tmp_path / "train.txt", whole[: len(whole) // 2])
    told = refused(path, "--recipe", "criteo", "--on-bad-rows", on_bad_rows)
    assert "damaged or cut off" in told or "ended before the end-of-stream" in told


# A wrong file for a recipe.


def test_a_recipe_says_what_it_expected_and_saw(refused: Callable[..., str], tmp_path: Path) -> None:
    path = save(tmp_path / "a.csv", GOOD)
    told = refused(path, "--recipe", "criteo")
    assert (
        "expected 40 columns (label, I1, I2 ... C26) between tabs, found 1 in the first line, 'click,user,price'"
        in told
    )
    told = refused(path, "--recipe", "avazu")
    assert "expected a header with id, click, hour ... C21 between commas, found no 'hour'" in told
    told = refused(path, "--recipe", "movielens-1m")
    assert (
        "recipe 'movielens-1m' takes ratings.dat with users.dat and movies.dat beside it, or their folder; found"
        in told
    )
    told = refused(tmp_path, "--recipe", "ipinyou")
    assert f"found none of them in the folder ({tmp_path})" in told
    told = refused(path, "--recipe", "libsvm")
    assert f"expected feature:value after the label, found only 'click,user,price' ({path}, line 1)" in told


def test_a_header_where_there_should_be_none(refused: Callable[..., str], tmp_path: Path) -> None:
    """A file of the right width whose cells are of another kind."""
    cells = ["x"] * 40
    path = save(tmp_path / "train.txt", "\t".join(COLUMNS) + "\n" + "\n".join(["\t".join(cells)] * 5) + "\n")
    assert "expected cells like [01] in column 'label', found 'label'" in refused(path, "--recipe", "criteo")


def test_what_lies_beside_a_file_is_missing(refused: Callable[..., str], tmp_path: Path) -> None:
    ratings = save(tmp_path / "ml" / "ratings.dat", "1::2::3::4\n" * 5)
    assert "needs users.dat beside the ratings, found none" in refused(ratings, "--recipe", "movielens-1m")
    write_raw("ipinyou", Simulation(200, 0, 0.2), tmp_path / "ipinyou")
    for log in (tmp_path / "ipinyou").rglob("clk.*"):
        log.unlink()
    assert "recipe 'ipinyou' found no label 'click'" in refused(tmp_path / "ipinyou", "--recipe", "ipinyou")


def test_predicting_a_wrong_file(call: Call, tmp_path: Path) -> None:
    raw = save(tmp_path / "train.txt", "\n".join(criteo_lines()) + "\n")
    call("prepare", raw, "--recipe", "criteo", "--out", tmp_path / "data")
    call("train", tmp_path / "data", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run")
    other = save(tmp_path / "a.csv", GOOD)
    code, _, told = call("predict", tmp_path / "run", other, "-o", tmp_path / "p.csv")
    assert (code, len(told.splitlines())) == (2, 1)
    assert "recipe 'criteo' takes train.txt (tabs, no header): expected 40 columns" in told
    assert not (tmp_path / "p.csv").exists()
