"""Files as they come: times, separators, labels of two values, an index, and names that nobody has."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fieldwise import cli
from fieldwise.bundle.predictor import Predictor
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode import prepare
from fieldwise.data.recipes import asked
from fieldwise.data.schema import Schema
from fieldwise.experiments.entrants import entrants
from fieldwise.serving.engine import Engine

Run = Callable[..., dict[str, Any]]
ROWS = 1500
START = 1_500_000_000
DAY = 86_400


def log(seed: int = 0) -> dict[str, list[Any]]:
    """Forty days in no order; clicks depend on the user, and on whether it is night."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 12, ROWS), random.integers(0, 8, ROWS)
    time = START + random.integers(0, 40 * DAY, ROWS)
    night = time % DAY < DAY // 2
    click = random.random(ROWS) < 0.15 + 0.4 * (user % 3 == 0) + 0.3 * night
    users, items = [f"u{one}" for one in user], [f"i{one}" for one in item]
    return {"click": click.astype(int).tolist(), "user": users, "item": items, "ts": time.tolist()}


def save(path: Path, columns: dict[str, list[Any]], separator: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """A `prepare` that must fail with one line, and leave nothing."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(["prepare", *map(str, arguments), "--out", str(tmp_path / "nothing")])
        printed = capsys.readouterr()
        lines = printed.err.strip().splitlines()
        assert (end.value.code, len(lines)) == (2, 1), printed.err
        assert not (tmp_path / "nothing").exists()
        return lines[0]

    return call


def notes(facts: dict[str, Any], word: str) -> list[str]:
    return [note for note in facts["notes"] if word in note]


def rates(data: Path) -> list[float]:
    return [float(np.mean(part.labels)) for part in Dataset.open(data).parts.values()]


# Times.


def in_order(columns: dict[str, list[Any]]) -> list[list[int]]:
    """The labels of each part, had the rows been split in the order of time, in the order of the file."""
    order = np.argsort(columns["ts"], kind="stable")
    part = np.empty(ROWS, dtype=int)
    part[order] = np.searchsorted([0.8, 0.9], np.arange(ROWS) / ROWS + 1e-9, side="right")
    labels = np.array(columns["click"])
    return [labels[part == number].tolist() for number in range(3)]


def labels(data: Path) -> list[list[int]]:
    return [part.labels.tolist() for part in Dataset.open(data).parts.values()]


def joined(parts: list[list[int]]) -> list[int]:
    return [label for part in parts for label in part]


def test_rows_are_split_in_the_order_of_a_time(tmp_path: Path, run: Run) -> None:
    columns = log()
    columns["ts"][:5] = sorted(columns["ts"])[:5]
    file = save(tmp_path / "log.csv", columns)
    facts = run("prepare", file, "--label", "click", "--out", tmp_path / "data")
    assert labels(tmp_path / "data") == in_order(columns)
    (said,) = notes(facts, "rows are split")
    assert "column 'ts' is a time, in seconds since 1970, from 2017-07-14 to 2017-08-2" in said
    assert said.endswith("split in its order, 80% train, 10% valid, 10% test (--split-by none: at random)")
    assert list(facts["fields"]) == ["user", "item", "ts:hour", "ts:weekday"]
    # The same by its name, and by the schema that was written; at random where the user says so.
    run("prepare", file, "--label", "click", "--split-by", "ts", "--out", tmp_path / "named")
    assert labels(tmp_path / "named") == in_order(columns)
    run("prepare", file, "--schema", tmp_path / "data" / "schema.toml", "--out", tmp_path / "again")
    assert labels(tmp_path / "again") == in_order(columns)
    dropped = run("prepare", file, "--label", "click", "--drop", "ts", "--out", tmp_path / "dropped")
    assert list(dropped["fields"]) == ["user", "item"]
    assert labels(tmp_path / "dropped") == in_order(columns)


@pytest.mark.parametrize(
    "options", [["--split-by", "none"], ["--split-by", "row"], ["--split-group", "user"], ["--test", "FILE"]]
)
def test_what_the_user_says_wins(tmp_path: Path, run: Run, options: list[str]) -> None:
    file = save(tmp_path / "log.csv", log())
    given = [str(file) if option == "FILE" else option for option in options]
    facts = run("prepare", file, "--label", "click", *given, "--out", tmp_path / "data")
    assert not notes(facts, "rows are split in its order")
    assert "ts:hour" in facts["fields"]


def test_a_schema_without_times_is_split_at_random(tmp_path: Path, run: Run) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text('label = "click"\n[[field]]\nname = "user"\n')
    file = save(tmp_path / "log.csv", log())
    facts = run("prepare", file, "--schema", schema, "--out", tmp_path / "data")
    assert facts["notes"] == []


def test_an_order_that_leaves_a_part_without_a_label(tmp_path: Path, run: Run) -> None:
    columns = log()
    columns["click"] = [
        int(time < START + 35 * DAY and click) for time, click in zip(columns["ts"], columns["click"], strict=True)
    ]
    file = save(tmp_path / "log.csv", columns)
    facts = run("prepare", file, "--label", "click", "--out", tmp_path / "data")
    (said,) = notes(facts, "split at random")
    assert "in its order the test part would lack one of the labels" in said
    assert all(0 < rate < 1 for rate in rates(tmp_path / "data"))
    # Asked for, it is done, and said.
    named = run("prepare", file, "--label", "click", "--split-by", "ts", "--out", tmp_path / "named")
    assert notes(named, "all 150 rows of the test part have label 0")


def test_the_second_time_gives_fields_too(tmp_path: Path, run: Run) -> None:
    columns = log()
    days = [f"2016-{1 + row % 12:02}-{1 + row % 27:02}" if row % 5 else "" for row in range(ROWS)]
    file = save(tmp_path / "log.csv", {**columns, "signup": days})
    facts = run("prepare", file, "--label", "click", "--out", tmp_path / "data")
    assert labels(tmp_path / "data") == in_order(columns)
    assert list(facts["fields"]) == ["user", "item", "ts:hour", "ts:weekday", "signup:weekday"]


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_a_log_whose_first_rows_are_of_one_hour(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(asked, "LOOKED_AT", 50)
    monkeypatch.setattr(prepare, "SAMPLE_ROWS", 50)
    stamps = [int(f"1410{21 + row // 150:02}{row % 150 // 10:02}") for row in range(ROWS)]
    columns = log() | {"hour": [stamps[row // 100 * 100] for row in range(ROWS)]}
    del columns["ts"]
    if name == "log.csv":
        save(tmp_path / name, columns)
    else:
        parquet.write_table(pa.table(columns), tmp_path / name)
    facts = run("prepare", tmp_path / name, "--label", "click", "--out", tmp_path / "data")
    assert notes(facts, "rows are split in its order")
    assert "hour:hour" in facts["fields"]
    assert "hour" not in facts["fields"]


def test_a_parquet_file_with_timestamps(tmp_path: Path, run: Run) -> None:
    columns = log()
    table = pa.table(columns)
    moments = pa.array(columns["ts"], pa.int64()).cast(pa.timestamp("s"))
    parquet.write_table(table.set_column(3, "ts", moments), tmp_path / "log.parquet")
    run("prepare", tmp_path / "log.parquet", "--label", "click", "--out", tmp_path / "data")
    assert labels(tmp_path / "data") == in_order(columns)


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LR that knows users and hours."""
    folder = tmp_path_factory.mktemp("nightly")
    file = save(folder / "log.csv", log())
    for command in (
        ["prepare", str(file), "--label", "click", "--out", str(folder / "data"), "--history", "none"],
        ["train", str(folder / "data"), "--model", "lr", "--set", "train.epochs=5", "--out", str(folder / "run")],
    ):
        with pytest.raises(SystemExit) as end:
            cli.main([*command, "--json"])
        assert end.value.code == 0
    return folder


def test_rows_to_predict_have_the_raw_column_or_lack_it(tmp_path: Path, run: Run, nightly: Path) -> None:
    columns = {name: values[:40] for name, values in log(1).items() if name != "click"}
    predictor, engine = Predictor.load(nightly / "run"), Engine.load(nightly / "run")

    def predicted(given: dict[str, list[Any]], name: str) -> list[float]:
        """By file and by request, which agree."""
        file = save(tmp_path / name, given)
        run("predict", nightly / "run", file, "-o", tmp_path / "out.csv")
        found = [float(line) for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
        rows = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
        np.testing.assert_allclose(predictor.predict(rows), found, atol=1e-6)
        np.testing.assert_allclose(engine.predict(rows), found, atol=1e-6)
        return found

    hours = predicted(columns, "all.csv")
    assert len(set(hours)) > 12
    without = predicted({name: values for name, values in columns.items() if name != "ts"}, "without.csv")
    assert len(set(without)) <= 12 * 8
    assert without != hours
    assert predicted({**columns, "ts": ["soon"] * 40}, "odd.csv") == without
    assert predicted({**columns, "ts": [""] * 40}, "empty.csv") == without
    # The same moments as a table has them.
    moments = pa.array(columns["ts"], pa.int64())
    np.testing.assert_allclose(predictor.predict(pa.table({**columns, "ts": moments})), hours, atol=1e-6)
    facts = {fact.name: fact for fact in engine.fields}
    assert (facts["ts"].kind, facts["ts"].hint) == ("time", "a time, in seconds since 1970")
    explained = engine.explain({"user": "u1", "ts": START})
    assert explained.values["ts:hour"] == "02:00"


def test_an_evaluation_without_the_time(tmp_path: Path, run: Run, nightly: Path) -> None:
    columns = log(2)
    whole = run("evaluate", nightly / "run", save(tmp_path / "whole.csv", columns))
    del columns["ts"]
    less = run("evaluate", nightly / "run", save(tmp_path / "less.csv", columns))
    assert less["log_loss"] > whole["log_loss"]


def test_a_history_counts_in_the_order_of_the_time(tmp_path: Path, run: Run) -> None:
    file = save(tmp_path / "log.csv", log())
    command = ["prepare", file, "--label", "click", "--history", "user", "--out"]
    facts = run(*command, tmp_path / "data")
    history = Schema.load(tmp_path / "data" / "schema.toml").history
    assert (history.time, history.parts) == ("ts", ("rate",))
    assert notes(facts, "history counts in the order of ts (--history-set time=none: in folds)")
    run(*command, tmp_path / "folds", "--history-set", "time=none")
    assert Schema.load(tmp_path / "folds" / "schema.toml").history.time == ""
    run(*command, tmp_path / "random", "--split-by", "none")
    assert Schema.load(tmp_path / "random" / "schema.toml").history.time == ""


def test_auto_that_proposes_nothing_leaves_all_as_it_is(tmp_path: Path, run: Run) -> None:
    random = np.random.default_rng(3)
    columns: dict[str, list[Any]] = {"click": random.integers(0, 2, ROWS).tolist()}
    columns |= {name: [f"{name}{one}" for one in random.integers(0, 20, ROWS)] for name in ("user", "item")}
    file = save(tmp_path / "log.csv", columns)
    plain = run("prepare", file, "--label", "click", "--out", tmp_path / "plain")
    auto = run("prepare", file, "--label", "click", "--history", "auto", "--out", tmp_path / "auto")
    assert auto["proposals"] == []
    assert notes(auto, "so none is proposed")
    assert auto["rows_kept_for"] == plain["rows_kept_for"] != []
    found = [[(one.name, one.settings) for one in entrants("", tmp_path / name)[0]] for name in ("plain", "auto")]
    assert found[0] == found[1]
    for name in ("schema.toml", "train/ids.npy", "rows/kept.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "auto" / name).read_bytes()


# Separators.


@pytest.mark.parametrize(
    ("name", "separator"), [("log.csv", ";"), ("log.csv", "\t"), ("log.csv", "|"), ("log.tsv", ",")]
)
def test_separators_are_found(tmp_path: Path, run: Run, nightly: Path, name: str, separator: str) -> None:
    columns = log(4) | {"note": ["1,5; a|b"] * ROWS}
    usual = save(tmp_path / "usual.csv", columns)
    file = save(tmp_path / name, columns, separator)
    found = run("prepare", file, "--label", "click", "--out", tmp_path / "data")
    (said,) = notes(found, "between its cells")
    mark = {"\t": "tabs", ",": "commas"}.get(separator, f"'{separator}'")
    assert said == f"{file} has {mark} between its cells (--separator says otherwise)"
    expected = run("prepare", usual, "--label", "click", "--out", tmp_path / "expected")
    assert found["fields"] == expected["fields"]
    assert labels(tmp_path / "data") == labels(tmp_path / "expected")
    assert run("evaluate", nightly / "run", file) == run("evaluate", nightly / "run", usual)
    for path, out in ((file, "a.csv"), (usual, "b.csv")):
        run("predict", nightly / "run", path, "-o", tmp_path / out)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_separator_that_the_user_names(tmp_path: Path, run: Run, nightly: Path, fails: Callable[..., str]) -> None:
    file = save(tmp_path / "log.csv", log(4), ":")
    assert "is that one column? --separator says" in fails(file, "--label", "click")
    facts = run("prepare", file, "--label", "click", "--separator", ":", "--out", tmp_path / "data")
    assert not notes(facts, "between its cells")
    run("predict", nightly / "run", file, "--separator", ":", "-o", tmp_path / "out.csv")
    assert run("evaluate", nightly / "run", file, "--separator", ":")["rows"] == ROWS
    tabs = save(tmp_path / "tabs.csv", log(4), "\t")
    assert run("prepare", tabs, "--label", "click", "--separator", "tab", "--out", tmp_path / "tabs")["rows"]
    assert "--separator takes one character, or tab, found '::'" in fails(file, "--label", "click", "--separator", "::")


def test_one_column_is_one_column(tmp_path: Path, run: Run, nightly: Path) -> None:
    """A set's separator is none of the file's."""
    (tmp_path / "one.csv").write_text("user\n" + "a|b\nc|d\n" * 20)
    predictor = Predictor.load(nightly / "run")
    assert predictor.schema.columns == ["user", "item", "ts"]
    (tmp_path / "log.csv").write_text("click,tags\n" + "0,a;b\n1,c;b\n0,a;c\n1,b\n" * 20)
    facts = run("prepare", tmp_path / "log.csv", "--label", "click", "--out", tmp_path / "data")
    assert facts["fields"]["tags"]["kind"] == "set"


# Labels.


@pytest.mark.parametrize(
    ("zero", "one"),
    [("no", "yes"), ("No", "YES"), ("n", "y"), ("FALSE", "TRUE"), ("f", "t"), (-1, 1), (1, 2), ("-1.0", "1.0")],
)
def test_labels_of_two_values(tmp_path: Path, run: Run, zero: Any, one: Any) -> None:
    columns = log()
    file = save(tmp_path / "log.csv", columns | {"click": [one if click else zero for click in columns["click"]]})
    facts = run("prepare", file, "--label", "click", "--split-by", "row", "--out", tmp_path / "data")
    assert joined(labels(tmp_path / "data")) == columns["click"]
    said = notes(facts, "is 1,")
    if str(zero) == "FALSE":
        assert said == []
        return
    low, high = (str(value).removesuffix(".0").lower() for value in (zero, one))
    assert said == [f"label: '{high}' is 1, '{low}' is 0 (--positive {low}: the other way round)"]
    assert Schema.load(tmp_path / "data" / "schema.toml").classes.positive == high
    other = run("prepare", file, "--label", "click", "--positive", zero, "--split-by", "row", "--out", tmp_path / "b")
    assert joined(labels(tmp_path / "b")) == [1 - click for click in columns["click"]]
    assert notes(other, f"label: '{low}' is 1, '{high}' is 0")


def test_other_labels_need_a_word(tmp_path: Path, run: Run, fails: Callable[..., str]) -> None:
    columns = log()
    columns["click"] = [" >50K" if click else "<=50K" for click in columns["click"]]
    file = save(tmp_path / "log.csv", columns)
    line = fails(file, "--label", "click")
    assert "label 'click' must be 0 or 1, found '" in line
    assert line.endswith("--positive VALUE says which of two values is 1")
    assert "--positive takes one of the two values of label 'click', found '>60k'" in fails(
        file, "--label", "click", "--positive", ">60K"
    )
    run("prepare", file, "--label", "click", "--positive", ">50K", "--out", tmp_path / "data")
    run("train", tmp_path / "data", "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run")
    assert run("evaluate", tmp_path / "run", file)["rows"] == ROWS
    # The bundle knows its values, and no others.
    columns["click"][7] = "perhaps"
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(tmp_path / "run"), str(save(tmp_path / "odd.csv", columns))])


def test_rows_with_a_third_label_are_skipped(tmp_path: Path, run: Run, fails: Callable[..., str]) -> None:
    columns = log()
    columns["click"] = ["yes" if click else "no" for click in columns["click"]]
    columns["click"][700] = "perhaps"
    file = save(tmp_path / "log.csv", columns)
    line = fails(file, "--label", "click")
    assert "label 'click' must be 'no' or 'yes', found 'perhaps'" in line
    assert "line 702" in line
    facts = run("prepare", file, "--label", "click", "--on-bad-rows", "skip", "--out", tmp_path / "data")
    assert sum(facts["rows"].values()) == ROWS - 1


# An index.


def test_every_index_of_pandas_is_left_out(tmp_path: Path, run: Run) -> None:
    numbers = list(range(ROWS))
    file = save(tmp_path / "log.csv", {"": numbers, "Unnamed: 0.1": numbers[::-1], **log()})
    facts = run("prepare", file, "--label", "click", "--out", tmp_path / "data")
    assert len(notes(facts, "numbers the rows")) == 2
    assert "user" in facts["fields"]
    parquet.write_table(pa.table({**log(), "__index_level_0__": numbers}), tmp_path / "log.parquet")
    facts = run("prepare", tmp_path / "log.parquet", "--label", "click", "--out", tmp_path / "typed")
    assert len(notes(facts, "column '__index_level_0__' has no name and numbers the rows")) == 1


# Names that no column has.


@pytest.mark.parametrize(
    "options",
    [
        ["--label", "click", "--drop", "itme"],
        ["--label", "click", "--split-by", "itme"],
        ["--label", "click", "--split-group", "user,itme"],
        ["--label", "click", "--weight", "itme"],
        ["--label", "click", "--history", "user*itme"],
        ["--label", "click", "--history", "user", "--history-set", "time=itme"],
        ["--label", "click", "--history", "user", "--history-set", "group=itme"],
        ["--label", "itme"],
    ],
)
def test_a_name_that_no_column_has(tmp_path: Path, fails: Callable[..., str], options: list[str]) -> None:
    line = fails(save(tmp_path / "log.csv", log()), *options)
    assert "'itme'" in line
    assert "did you mean 'item'?" in line


def test_a_name_that_no_column_of_an_evaluation_has(
    tmp_path: Path, nightly: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(save(tmp_path / "log.csv", log()))
    for option in ("--by", "--seen", "--truth"):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(["evaluate", str(nightly / "run"), file, option, "itme"])
        assert end.value.code == 2
        assert "did you mean 'item'?" in capsys.readouterr().err


def test_facts_are_json(tmp_path: Path, run: Run) -> None:
    columns = log() | {"paid": log()["click"]}
    facts = run("prepare", save(tmp_path / "log.csv", columns), "--label", "click", "--out", tmp_path / "data")
    assert json.loads(json.dumps(facts["giveaways"])) == [{"column": "paid", "auc": 1.0}]
    assert notes(facts, "warning: column 'paid' alone tells the label (AUC 1.0000)")
    assert notes(facts, "--drop paid")
