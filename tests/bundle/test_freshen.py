"""A history that took in new rows tells later ones what `prepare` tells them with all those rows as their past."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from fieldwise import cli
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.later_rows import follow
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.train.blend import blend
from fieldwise.train.loop import train

ROWS, FIRST, LAST = 900, 500, 700
KEYS = ("user", "item", "user*item", "price")
FIELDS = (Field("user"), Field("item"), Field("price", "numeric", buckets="explicit", thresholds=(0.25, 0.5, 0.75)))
TIMED = HistorySettings(KEYS, time="hour", view="rolling")
SETTINGS = {
    "folds": HistorySettings(KEYS, folds=4),
    "time": TIMED,
    "delay": replace(TIMED, delay=3.0),
    "window": replace(TIMED, window=40.0),
    "fading": replace(TIMED, half_life=11.0, delay=2.0),
    "interpolated": replace(TIMED, interpolate=4, parts=("rate",)),
    "row": replace(TIMED, time="row", window=300.0),
    "dropped": replace(TIMED, most_keys=1000),
}


def drawn(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "click": rng.integers(0, 2, rows),
            "user": [f"u{number}" if number else None for number in rng.integers(0, 15, rows)],
            "item": rng.integers(0, 400, rows),
            "price": rng.random(rows).round(3),
            "hour": np.sort(rng.integers(0, rows // 4, rows)),
        }
    )


def prepared(table: pa.Table, folder: Path, history: HistorySettings | None, past: int, valid: int = 0) -> Dataset:
    split = Split((past / len(table), valid / len(table), 1 - (past + valid) / len(table)), by="row")
    prepare({"train": lambda: iter([table])}, folder, "click", Schema("click", FIELDS), split, history=history)
    return Dataset.open(folder)


def trained(data: Path, run: Path, model: str = "lr") -> Path:
    train(load_config(overrides=[f"model.name={model}", "train.epochs=1", "device=cpu"]), data, run)
    return run


def update(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["history", "update", *map(str, arguments)])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("name", SETTINGS)
def test_later_rows_see_all_rows_as_their_past(tmp_path: Path, name: str):
    table, settings = drawn(), SETTINGS[name]
    prepared(table, tmp_path / "short", settings, FIRST, valid=LAST - FIRST)
    run = trained(tmp_path / "short", tmp_path / "run")
    pacsv.write_csv(table.slice(FIRST, 80), tmp_path / "one.csv")
    pacsv.write_csv(table.slice(FIRST + 80, LAST - FIRST - 80), tmp_path / "two.csv")
    assert update(run, tmp_path / "one.csv", "--out", tmp_path / "one") == 0
    assert update(tmp_path / "one", tmp_path / "two.csv", "--out", tmp_path / "two") == 0
    long = prepared(table, tmp_path / "long", settings, LAST)
    ours, theirs = Predictor.load(tmp_path / "two").encoder, Encoder.load(tmp_path / "long" / "encoder", long.schema)
    assert isinstance(ours, Encoder)
    assert ours.history is not None
    assert theirs.history is not None
    assert ours.history.end == theirs.history.end
    for key, expected in theirs.history.counts.state().items():
        np.testing.assert_array_equal(ours.history.counts.state()[key], expected)
    later, own, last = table.slice(LAST), len(FIELDS), theirs.layout.id_columns
    assert np.array_equal(ours.transform(later)[:, own:last], theirs.transform(later)[:, own:last])
    # As the rows come, one after the other, each sees what the prepared part has.
    told = ours.history.ids(follow(ours, later, np.array(later["click"])).history)
    if settings.time:
        assert np.array_equal(told, np.asarray(long.parts["test"].ids)[:, own:])


def test_weights_stay_and_predictions_follow_the_past(tmp_path: Path):
    table = drawn()
    prepared(table, tmp_path / "data", TIMED, FIRST, valid=100)
    run = trained(tmp_path / "data", tmp_path / "run")
    late = table.slice(FIRST, 100)
    pacsv.write_csv(late, tmp_path / "new.csv")
    assert update(run, tmp_path / "new.csv", "--out", tmp_path / "bundle", "--json") == 0
    before, after = run / "bundle", tmp_path / "bundle"
    for file in ("weights.safetensors", "config.toml", "schema.toml", "calibration.json", "metrics.json"):
        assert (before / file).read_bytes() == (after / file).read_bytes()
    later = table.slice(LAST)
    assert not np.array_equal(Predictor.load(before).predict(later), Predictor.load(after).predict(later))


def test_the_members_of_a_blend_keep_in_step(tmp_path: Path):
    table = drawn()
    prepared(table, tmp_path / "with", TIMED, FIRST, valid=100)
    prepared(table, tmp_path / "without", None, FIRST, valid=100)
    runs = [trained(tmp_path / name, tmp_path / f"{name}-run", "fm") for name in ("with", "without")]
    blend(runs, tmp_path / "both")
    pacsv.write_csv(table.slice(FIRST, 100), tmp_path / "new.csv")
    assert update(tmp_path / "both", tmp_path / "new.csv", "--out", tmp_path / "bundle") == 0
    assert update(runs[0], tmp_path / "new.csv", "--out", tmp_path / "alone") == 0
    member = Predictor.load(tmp_path / "bundle" / "members" / "0").encoder
    alone, later = Predictor.load(tmp_path / "alone").encoder, table.slice(LAST)
    assert np.array_equal(member.transform(later), alone.transform(later))
    assert len(Predictor.load(tmp_path / "bundle").predict(later)) == len(later)


@pytest.mark.parametrize("settings", [TIMED, HistorySettings(KEYS, folds=4)], ids=["time", "folds"])
def test_members_with_one_encoder_count_a_row_once(tmp_path: Path, settings: HistorySettings):
    table = drawn()
    prepared(table, tmp_path / "data", settings, FIRST, valid=100)
    runs = [trained(tmp_path / "data", tmp_path / name, name) for name in ("fm", "lr")]
    blend(runs, tmp_path / "both")
    pacsv.write_csv(table.slice(FIRST, 100), tmp_path / "new.csv")
    assert update(tmp_path / "both", tmp_path / "new.csv", "--out", tmp_path / "bundle") == 0
    assert update(runs[0], tmp_path / "new.csv", "--out", tmp_path / "alone") == 0
    together, alone = Predictor.load(tmp_path / "bundle"), Predictor.load(tmp_path / "alone").encoder
    assert together.bundle.members[0].encoder is together.bundle.members[1].encoder
    assert np.array_equal(together.encoder.transform(table.slice(LAST)), alone.transform(table.slice(LAST)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda table: table.slice(0, 50), "history runs forward: it has come to"),
        (lambda table: table.slice(FIRST).drop_columns("click"), "updating needs the label column 'click'"),
        (lambda table: table.slice(FIRST).drop_columns("hour"), "history needs the time column 'hour'"),
        (lambda table: table.slice(FIRST).drop_columns("item"), "history needs the column 'item'"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], rows, message):
    table = drawn()
    prepared(table, tmp_path / "data", TIMED, FIRST, valid=100)
    run = trained(tmp_path / "data", tmp_path / "run")
    pacsv.write_csv(rows(table), tmp_path / "new.csv")
    assert update(run, tmp_path / "new.csv", "--out", tmp_path / "bundle") == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "bundle").exists()


def test_a_model_without_a_history_has_nothing_to_update(
    tmp_path: Path, request: Any, capsys: pytest.CaptureFixture[str]
):
    plain = request.getfixturevalue("trained")
    assert update(plain.run, plain.log, "--out", tmp_path / "bundle", "--json") == 2
    assert "the model has no history to bring up to date" in capsys.readouterr().err


def test_json_says_how_far_it_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = drawn()
    prepared(table, tmp_path / "data", TIMED, FIRST, valid=100)
    run = trained(tmp_path / "data", tmp_path / "run")
    pacsv.write_csv(table.slice(FIRST), tmp_path / "new.csv")
    capsys.readouterr()
    assert update(run, tmp_path / "new.csv", "--out", tmp_path / "bundle", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == ROWS - FIRST
    assert found["histories"][0]["to"] == table["hour"][-1].as_py()
