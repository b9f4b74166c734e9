"""Prepared in shards: the folder is that of one machine, byte for byte."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from fieldwise.config.errors import ConfigError, DataError
from fieldwise.data.encode import fit_shards, pieces, time_shards
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.past import pasts
from fieldwise.data.read import line_blocks
from fieldwise.data.read.delimited import separated
from fieldwise.data.recipes.asked import Asked
from fieldwise.data.recipes.prepared import prepare_asked
from fieldwise.data.schema import Field, Schema, history_settings
from fieldwise.data.world.layouts import Simulation, write_raw


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK", 9000)
    monkeypatch.setattr(pieces, "PIECE_BLOCKS", 1)
    monkeypatch.setattr(fit_shards, "SHARD_ROWS", 600)
    monkeypatch.setattr(time_shards, "RANGE_ROWS", 900)


class Reversed(nullcontext["Reversed"]):
    """An engine that works on the last shard first, each with a copy of its own of what it works with, and knowing
    nothing else, as in another process."""

    def __enter__(self) -> Reversed:
        return self

    def check(self, paths: Sequence[Path]) -> None:
        assert all(path.exists() for path in paths)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return iter([Context().run(copy.deepcopy(function), item) for item in reversed(list(items))][::-1])


def write_log(path: Path, rows: int, seed: int, ending: str = "\t") -> Path:
    """Clicks with a category, a rare one, numbers, a set, a time that rises with gaps, and missing values of each."""
    random = np.random.default_rng(seed)
    lines = [ending.join(["click", "user", "rare", "price", "count", "tags", "when"])]
    for row in range(rows):
        user, price, count = random.integers(30), random.gamma(2), random.integers(0, 300)
        tags = "|".join(f"t{tag}" for tag in random.integers(0, 8, random.integers(0, 4)))
        when = 1_700_000_000 + 40_000 * seed + 100 * row - int(random.integers(0, 300))
        rare = "" if random.random() < 0.1 else f"r{int(random.pareto(0.5)) % 900}"
        cells = [int(random.random() < 0.3 + 0.02 * (user % 10)), f"u{user}", rare, f"{price:.3f}", count, tags, when]
        lines.append(ending.join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    return [write_log(folder / f"day{day}.tsv", rows, day) for day, rows in enumerate((900, 7, 500, 260))]


def content(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


SETTINGS: dict[str, dict[str, Any]] = {
    "at random": {},
    "at random, by other shares, with kept rows": {"shares": (0.63, 0.2, 0.17), "seed": 5, "keep_rows": True},
    "in the order of a time": {"split_by": "when"},
    "in the order of rows, with kept rows": {"split_by": "row", "keep_rows": True},
    "by group, with weights": {"split_group": ("user",), "weight": "price"},
    "history in folds": {"history": history_settings("user,user*rare", []), "any_order": False},
    "history in folds of groups, fewer negatives": {
        "history": history_settings("user*price", ["group=user,when", "interpolate=3"]),
        "keep_negatives": 0.4,
        "any_order": False,
        "split_by": "none",
    },
    "history that is proposed": {"history": history_settings("auto:2", [])},
    "history in time": {"history": history_settings("user,rare*user,price", ["time=when", "parts=rate,count"])},
    "rolling history in time": {
        "history": history_settings("user,rare", ["time=when", "delay=500", "half_life=3000", "view=rolling"]),
        "split_by": "when",
    },
    "history in time, parts in one another": {
        "history": history_settings("user", ["time=when", "half_life=3000"]),
        "split_by": "none",
    },
    "history in a window": {
        "history": history_settings("user,rare", ["time=when", "window=9000", "delay=100"]),
        "split_by": "when",
    },
    "history in the order of rows, fewer negatives": {
        "history": history_settings("user,rare", ["time=row", "delay=30"]),
        "keep_negatives": 0.5,
        "split_by": "row",
    },
    "history in a random order of groups, fewer negatives": {
        "history": history_settings("user,rare*user", ["folds=0", "group=user,when"]),
        "keep_negatives": 0.5,
        "any_order": False,
    },
    "by value, with leaves": {"split_by": "user", "gbdt_leaves": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_shards_make_the_folder_of_one_machine(tmp_path: Path, logs: list[Path], name: str) -> None:
    asked = Asked(files=logs, label="click", **SETTINGS[name])
    facts, _ = prepare_asked(asked, tmp_path / "one")
    found, _ = prepare_asked(asked, tmp_path / "shards", engine=Reversed)
    assert content(tmp_path / "shards") == content(tmp_path / "one")
    assert found | {"data": ""} == facts | {"data": ""}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "shards"]


def test_a_chain_of_folders_remembers_the_same_of_values(tmp_path: Path, logs: list[Path]) -> None:
    day, expired = tmp_path / "day0", []
    prepare_asked(Asked(files=logs[:1], label="click", drop=("when",), expire_after=("rare=1",)), day)
    for number in (1, 2):
        schema = Schema.load(day / "schema.toml")
        known = Encoder.load(day / "encoder", schema, lifetimes=True)
        later = Asked(files=logs[1 + number : 2 + number], label="click", known=known)
        day, shards = tmp_path / f"day{number}", tmp_path / f"shards{number}"
        facts, _ = prepare_asked(later, day)
        found, _ = prepare_asked(later, shards, engine=Reversed)
        assert content(shards) == content(day)
        assert found | {"data": ""} == facts | {"data": ""}
        expired.append(facts["expired"].get("rare", 0))
    # What was seen on the first day alone is one folder old on the second, and goes on the third.
    assert expired[0] == 0 < expired[1]


GOES_ON: dict[str, dict[str, Any]] = {
    "in folds": {"history": history_settings("user,rare*user", []), "any_order": False},
    "in a random order": {"history": history_settings("rare,user", ["folds=0"]), "any_order": False},
    "in time, with what waits": {
        "history": history_settings("user,rare", ["time=when", "half_life=3000", "delay=9000"])
    },
    "in time, in a window": {"history": history_settings("rare,price", ["time=when", "window=60000"])},
    "rolling": {"history": history_settings("user", ["time=when", "view=rolling", "delay=500"])},
}


@pytest.mark.parametrize("name", GOES_ON)
def test_a_history_goes_on(tmp_path: Path, logs: list[Path], name: str) -> None:
    settings = GOES_ON[name]
    prepare_asked(Asked(files=logs[:1], label="click", **settings), tmp_path / "day0")
    known = Encoder.load(tmp_path / "day0" / "encoder", Schema.load(tmp_path / "day0" / "schema.toml"))
    assert known.history is not None
    assert bool(len(known.history.waiting.times)) == bool(known.history.settings.time)
    later = Asked(files=logs[2:], label="click", known=known, split_by="none" if name == "rolling" else "")
    prepare_asked(later, tmp_path / "one")
    prepare_asked(later, tmp_path / "shards", engine=Reversed)
    assert content(tmp_path / "shards") == content(tmp_path / "one")
    early = Asked(files=logs[:2], label="click", known=known, split_by="row")
    if known.history.settings.time:
        said = set()
        for engine in (None, Reversed):
            with pytest.raises(DataError, match=r"history runs forward: it has come to 1\.70") as error:
                prepare_asked(early, tmp_path / "early", engine=engine)
            said.add(str(error.value))
        assert len(said) == 1


KINDS = Schema(
    "click",
    (
        Field("user", hash_buckets=7),
        Field("count", hash_buckets=11, role="position"),
        Field("rare", min_count=3, shared_ids=5),
        Field("when", "numeric", buckets="log-square", hash_buckets=9),
        Field("price", "numeric", buckets="tree", interpolate=4),
        Field("tags", "set", hash_buckets=5, separator="|"),
        Field("hour", "time", of="when", part="hour", format="seconds"),
        Field("trail", "sequence", like="rare", separator="|"),
    ),
)


def in_form(path: Path, table: pa.Table) -> Path:
    """A table as its ending says: csv with a quoted cell, packed text, or parquet."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=70)
    else:
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="all_valid" if path.suffix == ".csv" else "none"))
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_files_of_all_forms_with_parts_of_their_own(tmp_path: Path, logs: list[Path], ending: str) -> None:
    table = csv.read_csv(logs[0], parse_options=csv.ParseOptions(delimiter="\t"))
    table = table.append_column("trail", table["tags"])
    train = [in_form(tmp_path / f"{n}.{ending}", table.slice(200 * n, 200)) for n in range(3)]
    valid, test = (in_form(tmp_path / f"{name}.{ending}", table.slice(600, 150)) for name in ("valid", "test"))
    asked = Asked(train, valid, test, "click", schema=KINDS, history=history_settings("rare", ["time=row"]))
    prepare_asked(asked, tmp_path / "one")
    prepare_asked(asked, tmp_path / "shards", engine=Reversed)
    assert content(tmp_path / "shards") == content(tmp_path / "one")


def test_what_the_user_says_stands_between_cells(tmp_path: Path, logs: list[Path]) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text(logs[0].read_text().replace("\t", "#"))
    with separated("#"):
        asked = Asked([odd], label="click", separator="#", split_by="when")
        prepare_asked(asked, tmp_path / "one")
        prepare_asked(asked, tmp_path / "shards", engine=Reversed)
    assert content(tmp_path / "shards") == content(tmp_path / "one")


ROWS = {"criteo": 150, "ipinyou": 700, "avazu": 700}


@pytest.mark.parametrize("recipe", ROWS)
def test_a_recipe_with_bad_rows(tmp_path: Path, recipe: str) -> None:
    """Rows are skipped, balanced and counted as on one machine."""
    raw = tmp_path / ("log.csv" if recipe == "avazu" else "log.txt" if recipe == "criteo" else "raw")
    write_raw(recipe, Simulation(ROWS[recipe]), raw)
    files = [raw]
    if recipe == "criteo":
        raw.write_text(raw.read_text() + "too\tfew\n")
    found = {}
    for name, engine in (("one", None), ("shards", Reversed)):
        asked = Asked(files, recipe=recipe, skip_bad_rows=recipe == "criteo")
        found[name], _ = prepare_asked(asked, tmp_path / name, engine=engine)
    assert content(tmp_path / "shards") == content(tmp_path / "one")
    assert found["shards"] | {"data": ""} == found["one"] | {"data": ""}
    assert bool(found["one"]["skipped_rows"]) == (recipe == "criteo")


class Killed(BaseException):
    """Like a kill, it is no error that anybody tidies up after."""


class Dying(Reversed):
    """An engine that is killed after so many shards."""

    def __init__(self, shards: int) -> None:
        self.left = shards

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        for found in map(function, items):
            yield found
            self.left -= 1
            if self.left < 0:
                raise Killed


def test_killed_and_gone_on_equals_never_killed(tmp_path: Path, logs: list[Path]) -> None:
    odd = tmp_path / "odd.tsv"
    odd.write_text(logs[0].read_text() + "1\tfew\n")
    history = history_settings("user", [])
    asked = Asked(files=[odd, *logs[1:]], label="click", split_by="row", history=history, skip_bad_rows=True)
    whole, _ = prepare_asked(asked, tmp_path / "one")
    for shards in (2, 7, 11, 14, 18, 25, 33):
        with pytest.raises(Killed):
            prepare_asked(asked, tmp_path / "shards", engine=partial(Dying, shards))
    found, _ = prepare_asked(asked, tmp_path / "shards", engine=partial(Dying, 1000))
    assert content(tmp_path / "shards") == content(tmp_path / "one")
    assert [note for note in found["notes"] if note not in whole["notes"]] == [
        "went on after an interrupted run: 1,667 rows were staged already"
    ]


def test_a_run_on_one_machine_does_not_go_on_with_shards(tmp_path: Path, logs: list[Path]) -> None:
    asked = Asked(files=logs, label="click")
    with pytest.raises(Killed):
        prepare_asked(asked, tmp_path / "out", engine=partial(Dying, 9))
    facts, _ = prepare_asked(asked, tmp_path / "out")
    assert not any("went on" in note for note in facts["notes"])


def test_a_fault_is_named_by_its_line_wherever_its_piece_begins(tmp_path: Path, logs: list[Path]) -> None:
    lines = logs[0].read_text().splitlines()
    for number, text in ((700, "1\tu1"), (800, "2" + lines[800][1:]), (301, lines[300][:-4] + "\udc80")):
        odd = tmp_path / "odd.tsv"
        wrong = [*lines[: number - 1], text, *lines[number:]]
        odd.write_text("\n".join(wrong) + "\n", errors="surrogateescape")
        said = []
        for engine in (None, Reversed):
            with pytest.raises(DataError) as error:
                prepare_asked(Asked([odd], label="click", split_by="none"), tmp_path / "out", engine=engine)
            said.append(str(error.value))
        assert said[0] == said[1]
        assert f"line {number}" in said[0]


def test_what_shards_cannot_do_is_said(tmp_path: Path, logs: list[Path]) -> None:
    def said(asked: Asked) -> str:
        with pytest.raises(ConfigError) as error:
            prepare_asked(asked, tmp_path / "out", engine=Reversed)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    tables = [pa.table({"click": [0, 1] * 9, "x": x}) for x in ([1, 2] * 9, ["a", "b"] * 9)]
    odd = [in_form(tmp_path / f"{n}.parquet", table) for n, table in enumerate(tables)]
    assert "has one type in all files, found int64 and dictionary" in said(Asked(odd, label="click"))
    few = history_settings("price*user", ["most_keys=1000"])
    for order in (False, True):
        line = said(Asked(logs, label="click", history=few, any_order=order))
        assert line.startswith("on a cluster no key of a history is dropped, found 1")
    assert "does not make sequences yet" in said(Asked(logs, label="click", sequences=tuple(pasts("user by user"))))
