"""Evaluation of raw rows in pieces and by the values of a column."""

import json

import numpy as np
import pyarrow as pa
import pytest

from fieldwise import cli
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import DataError
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.evaluation import metrics


@pytest.fixture
def predictor(trained):
    return Predictor.load(trained.run)


@pytest.fixture
def rows(trained):
    """The raw log with a column that is no field: day, a number or missing."""
    table = pa.concat_tables(formats.read([trained.log]))
    days = [str(place % 11) if place % 11 else None for place in range(len(table))]
    return table.append_column("day", pa.array(days))


def labels_of(rows):
    return np.array(rows["click"].to_pylist(), dtype=np.int64)


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


def test_pieces_give_the_metrics_of_the_whole(predictor, rows):
    whole = predictor.evaluate(iter([rows]))
    pieces = predictor.evaluate(rows.slice(first, 37) for first in range(0, len(rows), 37))
    assert pieces == whole
    assert pieces == metrics.evaluate(labels_of(rows), predictor.predict(rows))


def test_metrics_by_a_column_that_is_no_field(predictor, rows):
    pieces = (rows.slice(first, 37) for first in range(0, len(rows), 37))
    found = predictor.evaluate(pieces, by="day")
    assert found["log_loss"] == predictor.evaluate(iter([rows]))["log_loss"]
    labels, p = labels_of(rows), predictor.predict(rows)
    days = np.arange(len(rows)) % 11
    expected = metrics.evaluate_by(labels, p, days)
    by = found["by"]
    assert by["auc"] == pytest.approx(expected["auc"], abs=1e-12)
    assert (by["column"], by["groups"], by["rows_covered"]) == ("day", 11, expected["rows_covered"])
    assert [row["value"] for row in by["values"]] == [*map(str, range(1, 11)), "(missing)"]
    for row, own in zip(by["values"], expected["values"][1:] + expected["values"][:1], strict=True):
        assert {key: row[key] for key in row if key != "value"} == {key: own[key] for key in own if key != "group"}


def test_by_value_of_a_field_raw_and_prepared(predictor, rows, trained):
    part = Dataset.open(trained.data).parts["valid"]
    found = predictor.evaluate_prepared(trained.data, "valid", by="user")["by"]
    ids = part.ids[:, 0]
    assert found["auc"] == metrics.grouped_auc(part.labels, predictor.probabilities(part.ids), ids)["auc"]
    assert {row["value"] for row in found["values"]} == {predictor.encoder.value_of(0, n) for n in set(ids.tolist())}
    prices = predictor.evaluate_prepared(trained.data, "valid", by="price")["by"]
    assert prices["groups"] == len(prices["values"]) > 1
    assert predictor.evaluate(iter([rows]), by="user")["by"]["groups"] == 20
    assert predictor.evaluate(iter([rows]), by="price")["by"]["values"] is None


def test_a_column_to_group_by_must_be_there_and_have_one_value(predictor, rows, trained):
    with pytest.raises(DataError, match="needs the column to group by, 'week', found: click, user"):
        predictor.evaluate(iter([rows]), by="week")
    with pytest.raises(DataError, match="knows only its fields, user, price, tags; found --by week"):
        predictor.evaluate_prepared(trained.data, "test", by="week")
    with pytest.raises(DataError, match="found the set 'tags'"):
        predictor.evaluate_prepared(trained.data, "test", by="tags")


def test_weights_count_in_groups_too(tmp_path, trained):
    table = pa.concat_tables(formats.read([trained.log]))
    weights = [str(place % 3) for place in range(len(table))]
    table = table.append_column("w", pa.array(weights))
    prepare({"train": lambda: iter([table])}, tmp_path / "data", "click", weight="w")
    chosen = ["--set", "train.epochs=1", "--device", "cpu", "--out", tmp_path / "run"]
    assert run("train", tmp_path / "data", "--model", "lr", *chosen) == 0
    weighted = Predictor.load(tmp_path / "run")
    found = weighted.evaluate(iter([table]), by="w")
    w = np.array(weights, dtype=np.float64)
    own = metrics.evaluate_by(labels_of(table), weighted.predict(table), w.astype(int), w)
    assert found["by"]["auc"] == own["auc"]
    assert [row["log_loss"] for row in found["by"]["values"]] == [row["log_loss"] for row in own["values"]]
    assert found["by"]["values"][0]["log_loss"] is None


def test_the_command_line_prints_a_table_or_json(rows, trained, tmp_path, capsys):
    path = tmp_path / "log.csv"
    formats.write(path, iter([rows]), lambda step, count: None)
    assert run("evaluate", trained.run, path, "--by", "day", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert run("evaluate", trained.run, path, "--by", "day") == 0
    text = capsys.readouterr().out
    assert f"AUC within day             {found['by']['auc']:.5f}" in text
    assert "11 of 11 values have both classes, 100.0% of the rows" in text
    for row in found["by"]["values"]:
        assert f"{row['log_loss']:.5f}" in text
    assert run("evaluate", trained.run, path, "--by", "price") == 0
    assert "values: too many to list, at most 50 are" in capsys.readouterr().out
    assert run("evaluate", trained.run, path, "--by", "week") == 2
    assert (
        f"--by column 'week' is missing; the file has: click, user, price, tags, day ({path})"
        in capsys.readouterr().err
    )
    assert run("evaluate", trained.run, trained.data, "--by", "user") == 0
