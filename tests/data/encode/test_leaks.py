"""Rows of one event on both sides of a split: found where labels exclude each other, and only there."""

from __future__ import annotations

import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import cli
from fieldwise.data.encode import leaks
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.encode.staged import LABEL
from fieldwise.data.read import formats
from fieldwise.data.schema import Field, Schema, history_settings
from fieldwise.data.world import World

ROWS = 9000


def events(rows: int = ROWS, seed: int = 0, negatives: int = 2, shuffled: bool = True) -> pa.Table:
    """Events of a user at a place and an hour; each is one positive and some negatives with other items."""
    rng = np.random.default_rng(seed)
    event = np.arange(rows) // (negatives + 1)
    user, place, hour = (rng.integers(0, n, event[-1] + 1)[event] for n in (200, 6, 24))
    label = np.arange(rows) % (negatives + 1) == 0
    order = rng.permutation(rows) if shuffled else np.arange(rows)
    columns = {"click": label.astype(int), "user": user, "place": place, "hour": hour}
    columns |= {"item": rng.integers(0, 300, rows), "rank": rng.integers(0, 40, rows)}
    return pa.table({name: column[order] for name, column in columns.items()})


def repeating(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Rows that come again and again, with labels that agree, because users like what they like."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 60, rows), rng.integers(0, 8, rows)
    likes = rng.random((60, 8))[user, item]
    columns = {"click": (rng.random(rows) < likes).astype(int), "user": user, "item": item}
    return pa.table(columns | {"place": user % 5, "hour": rng.integers(0, 4, rows)})


def prepared(folder: Path, table: pa.Table, split: Split | None = None, drop: tuple[str, ...] = (), **more: Any) -> Any:
    fields = tuple(Field(name, min_count=1) for name in table.column_names if name not in ("click", *drop))
    schema = Schema("click", fields)
    return prepare({"train": lambda: iter([table])}, folder, "click", schema, split, **more)


def warned(facts: dict[str, Any]) -> list[str]:
    return [note for note in facts["notes"] if "the split may give labels away" in note]


def test_events_cut_in_two_are_found_and_whole_ones_are_not(tmp_path: Path):
    table = events()
    facts = prepared(tmp_path / "random", table, drop=("rank",))
    assert facts["leak"]["left_out"] == ("item",)
    assert facts["leak"]["share"] > 0.7
    assert facts["leak"]["auc"] < 0.35
    (note,) = warned(facts)
    assert "alike in all fields but item" in note
    assert note.endswith("keep them together: --split-group user,place,hour")
    # The way out of the message is one.
    facts = prepared(tmp_path / "grouped", table, Split(group=("user", "place", "hour")), drop=("rank",))
    assert facts["leak"] is None
    assert warned(facts) == []


def test_two_fields_may_differ_within_an_event(tmp_path: Path):
    facts = prepared(tmp_path / "data", events(), history=history_settings("user"))
    assert facts["leak"]["left_out"] == ("item", "rank")
    (note,) = warned(facts)
    assert note.endswith("--split-group user,place,hour and --history-set group=user,place,hour")
    timed = prepared(tmp_path / "timed", events(), history=history_settings("user", ["time=row"]))
    assert warned(timed)[0].endswith("--split-group user,place,hour")


@pytest.mark.parametrize("negatives", [1, 9])
def test_other_compositions_are_found(tmp_path: Path, negatives: int):
    facts = prepared(tmp_path / "data", events(20_000, negatives=negatives), drop=("rank",))
    assert facts["leak"]["left_out"] == ("item",)


@pytest.mark.parametrize("seed", range(3))
def test_what_people_do_again_is_no_leak(tmp_path: Path, seed: int):
    facts = prepared(tmp_path / "data", repeating(seed=seed))
    assert facts["leak"] is None
    # The same rows with labels drawn anew.
    table = repeating(seed=seed)
    random = np.random.default_rng(seed).integers(0, 2, len(table))
    assert prepared(tmp_path / "random", table.set_column(0, "click", pa.array(random)))["leak"] is None


@pytest.mark.parametrize("kind", ["demo", "criteo"])
def test_a_simulated_log_has_none(tmp_path: Path, kind: str):
    table = World(kind).log(20_000).table
    facts = prepare({"train": lambda: iter([table])}, tmp_path / "data", "click")
    assert facts["leak"] is None


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_leak_is_followed_through_all_training_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffled: bool):
    table = events(30_000, shuffled=shuffled)
    whole = prepared(tmp_path / "whole", table)["leak"]
    assert whole["left_out"] == ("item", "rank")
    # Of the 24,000 training rows only the first 3,000 are looked at for suspects.
    monkeypatch.setattr(leaks, "FIRST_ROWS", 3_000)
    assert prepared(tmp_path / "rows", table)["leak"] == whole
    monkeypatch.undo()
    monkeypatch.setattr(leaks, "FIRST_CELLS", 15_000)
    assert prepared(tmp_path / "first", table)["leak"] == whole
    assert prepared(tmp_path / "none", repeating(30_000))["leak"] is None


def test_parts_in_files_of_their_own(tmp_path: Path):
    table = events(shuffled=True)
    texts = table.set_column(1, "user", table["user"].cast(pa.string()))
    tags = pa.array([["a", "b"] if hour % 2 else ["c"] for hour in table["hour"].to_pylist()])
    parts = {"train": texts.slice(0, 7000), "test": table.slice(7000)}
    parts = {part: rows.append_column("tags", tags[: len(rows)]) for part, rows in parts.items()}
    parts["test"] = parts["test"].set_column(6, "tags", tags[7000:])
    sources = {part: lambda rows=rows: iter([rows]) for part, rows in parts.items()}
    schema = Schema("click", (*(Field(name) for name in ("user", "place", "hour", "item")), Field("tags", "set")))
    facts = prepare(sources, tmp_path / "data", "click", schema)
    assert facts["leak"]["left_out"] == ("item",)
    (note,) = warned(facts)
    assert "of the test rows have training rows alike" in note
    assert note.endswith("keep them together: join the files and use --split-group user,place,hour,tags")


def test_there_may_be_nothing_to_compare(tmp_path: Path):
    table = events()
    everything = prepared(tmp_path / "train", table, Split((1.0, 0.0, 0.0)))
    assert everything["leak"] is None
    assert prepared(tmp_path / "one", table, drop=("place", "hour", "item", "rank"))["leak"] is None
    two = prepared(tmp_path / "two", table.select(["click", "user", "item"]))
    assert two["leak"] is None
    # Held-out rows of one label only have no AUC.
    training = np.where(np.arange(ROWS) < 7200, np.array(table["click"]), 0)
    facts = prepared(tmp_path / "label", table.set_column(0, "click", pa.array(training)), Split(by="row"))
    assert facts["positive_rate"]["valid"] == 0
    assert facts["leak"] is None


def test_the_command_line_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    formats.write(tmp_path / "log.csv", iter([events()]), lambda step, rows: None)
    command = ["prepare", str(tmp_path / "log.csv"), "--label", "click", "--force", "--out", str(tmp_path / "data")]
    with pytest.raises(SystemExit):
        cli.main(command)
    said = capsys.readouterr()
    assert said.err.count("note: the split may give labels away") == 1
    with pytest.raises(SystemExit):
        cli.main([*command, "--json"])
    assert json.loads(capsys.readouterr().out)["leak"]["left_out"] == ["item", "rank"]


def test_groups_against_slow_ones():
    rng = np.random.default_rng(0)
    names = ["a", "b", "c", "d"]
    columns = {name: rng.integers(0, 5, 700) for name in names}
    table = pa.table(columns | {LABEL: rng.integers(0, 2, 700)})
    held, train = table.slice(0, 200), table.slice(200)
    hasher = leaks._Hasher(held, names, train.schema)
    for left_out in [(0,), (3,), *itertools.combinations(range(4), 2)]:
        groups = leaks._Groups(left_out, *hasher(held, range(4)))
        for start in (0, 77, 400):
            some = train.slice(start, {0: 77, 77: 323, 400: 100}[start])
            groups.count(*hasher(some, left_out), some[LABEL].to_numpy())
        kept = [name for number, name in enumerate(names) if number not in left_out]
        tuples = [tuple(row[name] for name in kept) for row in table.to_pylist()]
        labels = np.array(table[LABEL])
        alike = [[o for o in range(200, 700) if tuples[o] == tuples[row]] for row in range(200)]
        there = [row for row in range(200) if alike[row]]
        means = [labels[alike[row]].mean() for row in there]
        assert groups.share == pytest.approx(len(there) / 200)
        size, area, error = groups.measure(labels[:200] > 0)
        assert size == np.median([len(alike[row]) for row in there])
        positive = [mean for mean, row in zip(means, there, strict=True) if labels[row]]
        negative = [mean for mean, row in zip(means, there, strict=True) if not labels[row]]
        wins = sum((p > n) + (p == n) / 2 for p in positive for n in negative)
        assert area == pytest.approx(wins / len(positive) / len(negative))
        assert error == pytest.approx(np.sqrt((1 / len(positive) + 1 / len(negative)) / 12))


@pytest.mark.parametrize("first_rows", [100_000, 300])
def test_of_many_fields_few_ways_are_held_at_a_time(
    first_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = events(1200)
    for number in range(60):
        table = table.append_column(f"more{number}", table["user"])
    monkeypatch.setattr(leaks, "FIRST_ROWS", first_rows)
    alive: weakref.WeakSet[leaks._Groups] = weakref.WeakSet()
    most = []
    make = leaks._Groups.__init__

    def counted(self: leaks._Groups, *given: Any) -> None:
        alive.add(self)
        most.append(len(alive))
        make(self, *given)

    monkeypatch.setattr(leaks._Groups, "__init__", counted)
    facts = prepared(tmp_path / "data", table, drop=("rank",))
    assert facts["leak"]["left_out"] == ("item",)
    assert len(most) > 64 + 100
    assert max(most) <= leaks.SUSPECTS + 3
