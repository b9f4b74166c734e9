"""Rows of known values and of `other`, by day, beside another model and the truth: slow twins and the command line."""

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
from fieldwise.config.errors import ConfigError, DataError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import HistorySettings, Schema
from fieldwise.data.world import World
from fieldwise.evaluation import drift, metrics
from fieldwise.evaluation.drift import Question
from fieldwise.train.blend import blend
from fieldwise.train.loop import train

HISTORY = HistorySettings(("user", "user*item"), time="stamp", view="rolling")


@pytest.fixture(scope="module")
def log() -> pa.Table:
    drawn = World("repeat", seed=1).log(3000, seed=1)
    hours = np.array(drawn.table["day"]) * 24 + np.array(drawn.table["hour"])
    table = drawn.table.select(["click", "day", "user", "device", "item", "price"])
    return table.append_column("stamp", pa.array(hours)).append_column("truth", pa.array(drawn.probability))


@pytest.fixture(scope="module")
def place(log: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drift")
    old = log.slice(0, 2000)
    for name, history in {"with": HISTORY, "without": None}.items():
        drop = ["day", "truth", "stamp"]
        prepare(
            {"train": lambda: iter([old])}, folder / name, "click", split=Split(by="row"), drop=drop, history=history
        )
        chosen = ["model.name=fm", "model.dim=4", "train.epochs=2", "train.lr=0.01", "device=cpu"]
        train(load_config(overrides=chosen), folder / name, folder / f"{name}-run")
    pacsv.write_csv(log.slice(2000), folder / "new.csv")
    return folder


def chunks(table: pa.Table, size: int = 170) -> Any:
    return (table.slice(first, size) for first in range(0, len(table), size))


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_seen_and_other_are_what_training_knew(place: Path, log: pa.Table):
    predictor, other = (Predictor.load(place / f"{name}-run") for name in ("with", "without"))
    new, train_rows = log.slice(2000), log.slice(0, 1600)
    question = Question(("user", "item", "user*item"), "day", other, "truth")
    found = drift.evaluate(predictor, chunks(new), question)
    labels, p, rival = np.array(new["click"]), predictor.predict(new), other.predict(new)
    truth, days = np.array(new["truth"]), np.array(new["day"])
    pairs = [[*zip(t["user"].to_pylist(), t["item"].to_pylist(), strict=True)] for t in (train_rows, new)]
    known = {name: (train_rows[name].to_pylist(), new[name].to_pylist()) for name in ("user", "item")}
    known["user*item"] = (pairs[0], pairs[1])
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, p), abs=1e-12)
    assert found["log_loss_against"] == pytest.approx(metrics.log_loss(labels, rival), abs=1e-12)
    assert found["log_loss_truth"] == pytest.approx(metrics.log_loss(labels, truth), abs=1e-12)
    assert [row["field"] for row in found["seen"]] == list(known)
    for row in found["seen"]:
        before, now = known[row["field"]]
        counts = {value: before.count(value) for value in set(now)}
        # A field's rare values share `other` too; a history key counts from the first time.
        least = 2 if row["field"] != "user*item" else 1
        fresh = np.array([counts[value] < least for value in now])
        assert 0 < fresh.mean() < 1
        for values, own in [(np.ones(len(new), bool), row), *((days == int(d["value"]), d) for d in row["by"])]:
            for side, mask in (("seen", ~fresh & values), ("other", fresh & values)):
                assert own[side]["rows"] == mask.sum()
                assert own[side]["log_loss_truth"] == pytest.approx(
                    metrics.log_loss(labels[mask], truth[mask]), abs=1e-12
                )
                assert own[side]["log_loss"] == pytest.approx(metrics.log_loss(labels[mask], p[mask]), abs=1e-12)
                assert own[side]["auc"] == pytest.approx(metrics.auc(labels[mask], p[mask]), abs=1e-12)
                expected = metrics.log_loss(labels[mask], rival[mask])
                assert own[side]["log_loss_against"] == pytest.approx(expected, abs=1e-12)
            share = (fresh & values).sum() / values.sum()
            assert own["share"] == pytest.approx(share)
            assert own["cost"] == pytest.approx(share * own["price"], abs=1e-12)


def test_the_price_of_a_value_is_what_hiding_it_costs(place: Path, log: pa.Table):
    predictor, new = Predictor.load(place / "without-run"), log.slice(2000)
    (row,) = drift.evaluate(predictor, chunks(new), Question(("user",)))["seen"]
    strangers = new.set_column(new.column_names.index("user"), "user", pa.array(["a stranger"] * len(new)))
    seen = ~drift.unseen(predictor.encoder, "user", predictor.encoder.transform(new))
    labels = np.array(new["click"])[seen]
    rise = metrics.log_loss(labels, predictor.predict(strangers)[seen]) - metrics.log_loss(
        labels, predictor.predict(new)[seen]
    )
    assert row["price"] == pytest.approx(rise, abs=1e-9)


@pytest.mark.parametrize("settings", [{}, {"interpolate": 4}, {"parts": ("count",)}, {"parts": ("rate",)}])
def test_a_hidden_key_is_one_that_was_never_counted(log: pa.Table, tmp_path: Path, settings: dict[str, Any]):
    table = log.drop_columns(["day", "truth"])
    history = replace(HISTORY, **settings)
    prepare({"train": lambda: iter([table])}, tmp_path / "data", "click", split=Split(by="row"), history=history)
    encoder = Encoder.load(tmp_path / "data" / "encoder", Schema.load(tmp_path / "data" / "schema.toml"))
    later = table.slice(2990)
    hidden = drift.hidden(encoder, "user*item", encoder.transform(later))
    assert drift.unseen(encoder, "user*item", hidden).all()
    strangers = later.set_column(later.column_names.index("item"), "item", pa.array(["new"] * len(later)))
    columns = [
        c
        for n in encoder.names
        if n.startswith("user*item")
        for c in encoder.layout.columns_of([encoder.names.index(n)])
    ]
    assert np.array_equal(hidden[:, columns], encoder.transform(strangers)[:, columns])


@pytest.mark.parametrize("run", ["with-run", "both"])
def test_a_hidden_value_has_no_past_either(place: Path, log: pa.Table, tmp_path: Path, run: str):
    """Its row is that of a stranger, in every field and every key that it is part of; of a blend, in every member."""
    if run == "both":
        blend([place / "with-run", place / "without-run"], tmp_path / run)
    encoder = Predictor.load((tmp_path if run == "both" else place) / run).encoder
    new = log.slice(2000)
    strangers = new.set_column(new.column_names.index("user"), "user", pa.array(["a stranger"] * len(new)))
    wanted, found = encoder.transform(strangers), drift.hidden(encoder, "user", encoder.transform(new))
    assert np.array_equal(found, wanted)


def test_pieces_do_not_matter(place: Path, log: pa.Table):
    predictor = Predictor.load(place / "with-run")
    question = Question(("all",), "day", Predictor.load(place / "without-run"), "truth")
    new = log.slice(2000)
    whole = drift.evaluate(predictor, iter([new]), question)
    pieces = drift.evaluate(predictor, chunks(new, 333), question)
    assert json.dumps(pieces, default=float) == json.dumps(whole, default=float)
    assert [row["field"] for row in whole["seen"]] == ["user", "device", "item"]


def test_live_rows_see_those_before_them_as_prepare_does(place: Path, log: pa.Table, tmp_path: Path):
    """Scored live, rows after the training rows have the ids of the prepared part."""
    predictor = Predictor.load(place / "with-run")
    held, rows = log.slice(1600, 200), predictor.prepared_part(place / "with", "valid")[1]
    found = [piece.ids for piece in predictor.labelled(chunks(held, 37), live=True)]
    assert np.array_equal(np.concatenate(found), rows.ids)
    # A history without a time stays as it is, and so does a model without one.
    plain = Predictor.load(place / "without-run")
    (live,) = plain.labelled(iter([held]), live=True)
    assert np.array_equal(live.probabilities, plain.predict(held))


def test_a_prepared_part_and_a_blend_tell_too(place: Path, log: pa.Table, tmp_path: Path):
    predictor = Predictor.load(place / "with-run")
    prepared = drift.evaluate_prepared(predictor, place / "with", "test", ["user", "user*item"])
    raw = drift.evaluate(predictor, chunks(log.slice(1800, 200)), Question(("user",)))
    assert prepared["seen"][0]["other"]["rows"] == raw["seen"][0]["other"]["rows"]
    blend([place / "with-run", place / "without-run"], tmp_path / "both")
    both = drift.evaluate(Predictor.load(tmp_path / "both"), chunks(log.slice(2000)), Question(("user", "user*item")))
    alone = drift.evaluate(predictor, chunks(log.slice(2000)), Question(("user", "user*item")))
    for ours, theirs in zip(both["seen"], alone["seen"], strict=True):
        assert ours["other"]["rows"] == theirs["other"]["rows"]


def test_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]):
    rows = [place / "with-run", place / "new.csv", "--by", "day", "--seen", "user,item,user*item"]
    against = ["--against", place / "without-run", "--truth", "truth"]
    assert run("evaluate", *rows, *against, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in found["by"]["values"]] == ["6", "7", "8", "9"]
    assert all("log_loss_against" in row for row in found["by"]["values"])
    assert run("evaluate", *rows, *against, "--live") == 0
    assert "Hidden" in capsys.readouterr().out
    assert run("evaluate", place / "with-run", place / "with", "--seen", "all") == 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("price",), "found 'price': numbers always have a bucket; choose from user, device, item"),
        (("town",), "--seen takes fields and history keys, found 'town'; there are: user, device, item, user*item"),
    ],
)
def test_what_cannot_be_seen_is_named(place: Path, log: pa.Table, names: tuple[str, ...], message: str):
    with pytest.raises(ConfigError) as caught:
        drift.evaluate(Predictor.load(place / "with-run"), chunks(log), Question(names))
    assert message in str(caught.value)


def test_a_truth_that_is_none_is_named(place: Path, log: pa.Table):
    predictor = Predictor.load(place / "with-run")
    with pytest.raises(DataError, match="the truth must be a probability in every row"):
        drift.evaluate(predictor, chunks(log), Question(truth="stamp"))
    with pytest.raises(DataError, match="evaluating needs the column of the truth, 'belief'"):
        drift.evaluate(predictor, chunks(log), Question(truth="belief"))


def test_a_prepared_folder_has_no_other_columns(place: Path, capsys: pytest.CaptureFixture[str]):
    assert run("evaluate", place / "with-run", place / "with", "--live") == 2
    assert "--against, --truth and --live need raw rows" in capsys.readouterr().err
