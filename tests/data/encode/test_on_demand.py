"""The folders that are made when they are asked for: of kept rows, once, whole or not at all."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.config.errors import FieldwiseError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import encode, kept, rates
from fieldwise.data.encode.on_demand import made, offered
from fieldwise.data.encode.prepare import Plan, Split, carry_out, prepare
from fieldwise.data.encode.staged import staged_chunks
from tests.data.clicks import click_log
from tests.data.encode.test_restart import Killed, content, kill_after

INNER = ("rates", "order", "refit", "refit/rates", "refit/order")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = click_log()
    numbered = log.append_column("request", [[f"r{row}" for row in range(len(log))]])
    prepare({"train": lambda: iter([numbered])}, tmp_path / "data", "click", keep_rows=True)
    return tmp_path / "data"


def test_prepare_leaves_the_plain_folder_and_its_rows(data: Path) -> None:
    assert {path.name for path in data.iterdir()} == {
        *("schema.toml", "encoder", "data.json", "train", "valid", "test", "rows")
    }
    assert len(list(data.rglob("ids.npy"))) == 3
    # A column that is no field, of another value in every row, is not kept.
    rows = pa.concat_tables(staged_chunks(data / "rows" / "train"))
    assert rows.column_names == ["user", "item", "price", "__label__"]
    np.testing.assert_array_equal(rows["__label__"].to_numpy(), Dataset.open(data).parts["train"].labels)


def test_each_is_made_once_and_alone(data: Path) -> None:
    made(data / "order")
    assert not (data / "rates").exists()
    found = content(data / "order")
    times = {path: path.stat().st_mtime_ns for path in (data / "order").rglob("*")}
    for name in INNER:
        assert made(data / name) == data / name
    assert times == {path: path.stat().st_mtime_ns for path in (data / "order").rglob("*")}
    assert sorted(path.name for path in (data / "refit").iterdir()) == [
        *("data.json", "encoder", "order", "rates", "rows", "schema.toml", "train", "valid")
    ]
    # Which of the two comes first changes nothing.
    shutil.rmtree(data / "order")
    made(data / "order")
    assert content(data / "order") == found


def test_the_plain_folder_of_the_test_rows_needs_no_rates(data: Path) -> None:
    made(data / "refit")
    assert not [path for path in data.rglob("*") if path.name in ("rates", "order", "stage")]


def test_killed_it_is_not_there_and_the_next_one_makes_it(data: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(data, whole)
    for name in INNER:
        made(whole / name)
    for name in INNER:
        for owner, function in ((encode, "write_facts"), (encode, "array_file")):
            with pytest.MonkeyPatch.context() as patch:
                kill_after(patch, owner, function, 0)
                with pytest.raises(Killed):
                    made(data / name)
            assert not (data / name).exists()
    for name in reversed(INNER):
        made(data / name)
    assert content(data) == content(whole)


def _make(folder: Path, answers: Any) -> None:
    plain = rates.write_history

    def slow(*arguments: Any) -> None:
        answers.put("making")
        time.sleep(0.3)
        plain(*arguments)

    rates.write_history = slow
    made(folder)
    answers.put(Dataset.open(folder).fingerprint)


def test_two_processes_make_one(data: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_make, args=(data / "rates", answers)) for _ in range(2)]
    for process in processes:
        process.start()
    found = sorted(answers.get(timeout=60) for _ in range(3))
    for process in processes:
        process.join()
    fingerprint = Dataset.open(data / "rates").fingerprint
    assert found == sorted(["making", fingerprint, fingerprint])


def test_folders_of_an_older_version_are_taken_as_they_are(data: Path) -> None:
    """They have rates, and no rows to make any of."""
    for name in INNER:
        made(data / name)
    for rows in (data / "rows", data / "refit" / "rows"):
        shutil.rmtree(rows)
    assert all(offered(data / name) for name in INNER)
    assert Dataset.open(made(data / "refit" / "rates")).parts["train"].rows > 0


def test_without_rows_nothing_is_offered(tmp_path: Path) -> None:
    prepare({"train": lambda: iter([click_log()])}, tmp_path / "data", "click")
    assert not offered(tmp_path / "data" / "rates")
    assert made(tmp_path / "data" / "rates") == tmp_path / "data" / "rates"
    assert not (tmp_path / "data" / "rates").exists()
    assert made(tmp_path / "nowhere" / "refit" / "rates").exists() is False


def test_a_disk_without_second_names_gets_copies(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = content(made(data / "rates"))
    shutil.rmtree(data / "rates")

    def no_link(*_: Any) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(kept.os, "link", no_link)
    assert content(made(data / "rates")) == linked


def test_a_folder_that_one_may_not_write_to_is_one_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "data")

    monkeypatch.setattr(rates, "link_rows", refused)
    with pytest.raises(FieldwiseError, match=r"cannot make the folder .*rates: Permission denied; copy the prepared"):
        made(data / "rates")
    assert not (data / "rates").exists()


def test_a_plan_checks_its_values() -> None:
    source = {"train": lambda: iter([click_log()])}
    for wrong in ({"keep_negatives": 0.0}, {"threads": -1}):
        with pytest.raises(FieldwiseError, match="--"):
            Plan(source, "click", **wrong)
    with pytest.raises(FieldwiseError, match="--split-by splits the training rows"):
        Plan(source | {"valid": source["train"]}, "click", split=Split(by="row"))


def test_a_plan_is_what_prepare_makes_of_its_arguments(tmp_path: Path) -> None:
    sources, split = {"train": lambda: iter([click_log()])}, Split(seed=2)
    facts = carry_out(Plan(sources, "click", split=split, drop=["price"]), tmp_path / "one")
    again = prepare(sources, tmp_path / "two", "click", split=split, drop=["price"])
    assert facts | {"data": ""} == again | {"data": ""}
    assert content(tmp_path / "one") == content(tmp_path / "two")
    with pytest.raises(TypeError, match="kep_rows"):
        prepare(sources, tmp_path / "three", "click", kep_rows=True)
