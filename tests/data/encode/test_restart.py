"""A `prepare` that was killed goes on: the same result, and nothing of another run is taken over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.config.errors import FieldwiseError
from fieldwise.config.files import resumed_folder
from fieldwise.data.dataset import ArrayFile, Dataset
from fieldwise.data.encode import encode, kept, stage
from fieldwise.data.encode import prepare as room
from fieldwise.data.encode.prepare import Inputs, Split, prepare
from fieldwise.data.read import line_blocks, streams
from fieldwise.data.recipes.asked import Asked
from fieldwise.data.recipes.prepared import prepare_asked
from fieldwise.data.schema import HistorySettings


class Killed(BaseException):
    """Like a kill, it is no error that anybody tidies up after."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    lines = [
        f"{click}\tu{user}\t{price}\tx{place}"
        for click, user, price, place in zip(
            random.integers(0, 2, 3000),
            random.integers(0, 50, 3000),
            random.integers(0, 500, 3000),
            random.integers(0, 1500, 3000),
            strict=True,
        )
    ]
    path = tmp_path / "log.tsv"
    path.write_text("\n".join(["click\tuser\tprice\tplace", *lines]) + "\n")
    return path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK", 4000)


def prepared(log: Path, out: Path, **settings: Any) -> dict[str, Any]:
    from fieldwise.data.read import formats

    sources = {"train": lambda: formats.read([log])}
    return prepare(sources, out, "click", force=True, inputs=Inputs([log]), **settings)


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def kill_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int) -> list[int]:
    """Lets a function be called so often and then dies in it."""
    real, seen = getattr(owner, name), [0]

    def function(*arguments: Any, **more: Any) -> Any:
        seen[0] += 1
        if seen[0] > calls:
            raise Killed
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, function)
    return seen


SETTINGS = {
    "random": {"split": Split(seed=3)},
    "kept rows": {"split": Split(seed=3), "keep_rows": True},
    "in order": {"split": Split(by="row")},
    "by value": {"split": Split(by="user")},
    "fewer negatives": {"split": Split(by="row"), "keep_negatives": 0.5},
    "history": {"split": Split(by="row"), "history": HistorySettings(keys=("user",), time="row")},
    "folds": {"keep_negatives": 0.5, "history": HistorySettings(keys=("user", "user*place"))},
}
KILLS = [(stage, "write_staged", 9), (room, "fit_encoder", 0), (ArrayFile, "append", 11), (room, "find_leak", 0)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_killed_and_gone_on_equals_never_killed(tmp_path: Path, log: Path, name: str, threads: int) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    prepared(log, whole, threads=3 - threads, **SETTINGS[name])
    for owner, function, calls in KILLS:
        with pytest.MonkeyPatch.context() as patch:
            kill_after(patch, owner, function, calls)
            with pytest.raises(Killed):
                prepared(log, out, threads=threads, **SETTINGS[name])
        assert not out.exists()
    with pytest.MonkeyPatch.context() as patch:
        seen = kill_after(patch, stage, "write_staged", 1_000_000)
        facts = prepared(log, out, threads=threads, **SETTINGS[name])
    assert seen == [0]
    assert any("3,000 rows were staged already" in note for note in facts["notes"])
    assert content(out) == content(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.tsv", "out", "whole"]


def test_skipped_rows_are_counted_once_where_a_killed_run_goes_on(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_ROWS", 200)
    log.write_text(log.read_text() + "7\tu1\t3\tx1\n" * 2 + "1\tfew\n")
    asked = Asked([log], label="click", split_by="place", skip_bad_rows=True)
    whole, _ = prepare_asked(asked, tmp_path / "whole")
    for owner, function, calls in KILLS:
        with pytest.MonkeyPatch.context() as patch:
            kill_after(patch, owner, function, calls)
            with pytest.raises(Killed):
                prepare_asked(asked, tmp_path / "out")
    facts, _ = prepare_asked(asked, tmp_path / "out")
    assert any("3,000 rows were staged already" in note for note in facts["notes"])
    assert facts["skipped_rows"] == whole["skipped_rows"]
    assert whole["skipped_rows"][0]["rows"] == 3
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_cut_may_be_killed_anywhere(tmp_path: Path, log: Path) -> None:
    """Rows in their order are divided after they were staged; each step of that may be the last."""
    from fieldwise.data.encode import split_staged

    whole, out = tmp_path / "whole", tmp_path / "out"
    prepared(log, whole, split=Split(by="row"))
    for owner, function, most in ((split_staged.os, "replace", 4), (split_staged, "write_staged", 4)):
        for calls in range(most):
            with pytest.MonkeyPatch.context() as patch:
                kill_after(patch, owner, function, calls)
                try:
                    prepared(log, out, split=Split(by="row"))
                except Killed:
                    continue
    prepared(log, out, split=Split(by="row"))
    assert content(out) == content(whole)


@pytest.mark.parametrize("change", ["file", "settings"])
def test_another_file_or_setting_starts_anew(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, room, "fit_encoder", 0)
        with pytest.raises(Killed):
            prepared(log, out)
    split = Split(seed=1) if change == "settings" else Split()
    if change == "file":
        log.write_text(log.read_text().replace("u1", "v1"))
        os.utime(log, ns=(1, 1))
    facts = prepared(log, out, split=split)
    assert not any("went on" in note for note in facts["notes"])
    prepared(log, tmp_path / "whole", split=split)
    assert content(out) == content(tmp_path / "whole")


def test_a_torn_last_line_of_the_journal(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, stage, "write_staged", 9)
        with pytest.raises(Killed):
            prepared(log, out, threads=1)
    with (tmp_path / ".out.started" / "stage" / "journal.jsonl").open("a") as journal:
        journal.write('{"source": "tr')
    prepared(log, out)
    prepared(log, tmp_path / "whole")
    assert content(out) == content(tmp_path / "whole")


def test_rows_that_come_from_no_file_start_anew(tmp_path: Path) -> None:
    table = pa.table({"click": [0, 1] * 50, "x": ["a", "b", "c", "d"] * 25})

    def rows() -> Iterator[pa.Table]:
        yield table

    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, encode, "read_journal", 0)
        with pytest.raises(Killed):
            prepare({"train": rows}, tmp_path / "out", "click")
    assert list(tmp_path.iterdir()) == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        resumed_folder(tmp_path / "out", "a", "same") as work,
        pytest.raises(FieldwiseError, match=r"another process \(pid \d+\) is writing"),
        resumed_folder(tmp_path / "out", "a", "same"),
    ):
        pass
    assert not work.exists()
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_the_number_of_threads_changes_nothing(tmp_path: Path, log: Path) -> None:
    found = []
    for threads in (1, 2, 3):
        prepared(log, tmp_path / "out", threads=threads)
        found.append(Dataset.open(tmp_path / "out").fingerprint)
    assert len(set(found)) == 1
    with pytest.raises(FieldwiseError, match="--threads takes a number of threads"):
        prepared(log, tmp_path / "out", threads=-1)


def test_killed_while_the_staged_rows_are_removed(tmp_path: Path, log: Path) -> None:
    """Files that are gone are not taken for staged ones."""

    remove = shutil.rmtree

    def half(stage: Path, ignore_errors: bool = False) -> None:
        if ignore_errors:  # another folder, before this one
            return remove(stage, ignore_errors=True)
        remove(stage / "train")
        (stage / "encoded.jsonl").unlink()
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.shutil, "rmtree", half)
        with pytest.raises(Killed):
            prepared(log, tmp_path / "out")
    prepared(log, tmp_path / "out")
    prepared(log, tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("calls", [0, 2])
def test_killed_while_the_rows_are_kept(tmp_path: Path, log: Path, calls: int) -> None:
    """Rows that have moved are not taken for staged ones, nor is what they moved to taken for all of them."""
    prepared(log, tmp_path / "whole", keep_rows=True)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, kept, "_move", calls)
        with pytest.raises(Killed):
            prepared(log, tmp_path / "out", keep_rows=True)
    prepared(log, tmp_path / "out", keep_rows=True)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
