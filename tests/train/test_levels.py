"""Logs whose level moves from day to day, from the rows to the report: what is promised of later rows is what comes."""

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.encode.split import Split
from fieldwise.data.schema import HistorySettings
from fieldwise.evaluation.metrics import sigmoid
from fieldwise.reporting.result_tables import outlook_lines
from fieldwise.train.loop import train

DAYS, ROWS = 40, 400


def log(levels, seed=0):
    """Rows of 40 days, each with its level, and a place that says something of the label."""
    random = np.random.default_rng(seed)
    day = np.repeat(np.arange(DAYS), ROWS)
    place = random.integers(0, 8, len(day))
    click = random.random(len(day)) < sigmoid(levels[day] - 1.5 + 0.3 * (place - 3.5))
    return pa.table({"click": click.astype(int), "day": day, "place": place.astype(str)})


def trained(table, folder, **more):
    prepare({"train": lambda: iter([table])}, folder / "data", "click", split=Split(by="day"), **more)
    settings = load_config(overrides=["model.name=lr", "train.epochs=3", "device=cpu"])
    return train(settings, folder / "data", folder / "run")


@pytest.mark.parametrize("last", [-0.5, 0.5])
def test_levels_that_return_are_not_taken_from_the_last_block(tmp_path, last):
    """Levels of each day by itself; those of the validation days happen to be low, or high."""
    levels = np.random.default_rng(1).normal(0, 0.35, DAYS)
    levels[32:36], levels[36:] = last + 0.1 * levels[32:36], 0.0
    report = trained(log(levels), tmp_path)
    labels = {name: part.labels.mean() for name, part in Dataset.open(tmp_path / "data").parts.items()}
    assert not 0.75 < labels["valid"] / labels["test"] < 1.33
    assert report["level_kept"] < 0.5
    assert report["test"]["calibration"] == pytest.approx(1, abs=0.15)
    low, high = report["expected_calibration"]
    assert low < report["test"]["calibration"] < high


def test_levels_that_wander_are_taken_from_the_last_block(tmp_path):
    levels = np.linspace(1.0, -1.0, DAYS) + np.random.default_rng(2).normal(0, 0.05, DAYS)
    report = trained(log(levels), tmp_path)
    labels = {name: part.labels.mean() for name, part in Dataset.open(tmp_path / "data").parts.items()}
    assert labels["train"] / labels["test"] > 1.6
    assert report["level_kept"] > 0.5
    assert report["test"]["calibration"] < 1.25


def test_few_positives_in_random_parts_leave_the_level_of_all_rows(tmp_path):
    """About fifty positives to calibrate by: predicted/observed stays within 15 % of the true rate."""
    for seed in range(3):
        random = np.random.default_rng(seed)
        place = random.integers(0, 8, 6000)
        truth = sigmoid(-2.7 + 0.3 * (place - 3.5))
        click = (random.random(6000) < truth).astype(int)
        table = pa.table({"click": click, "place": place.astype(str)})
        folder = tmp_path / str(seed)
        prepare({"train": lambda table=table: iter([table])}, folder / "data", "click")
        settings = load_config(overrides=["model.name=lr", "train.epochs=3", "device=cpu"])
        report = train(settings, folder / "data", folder / "run")
        predicted = report["test"]["calibration"] * report["test"]["positive_rate"]
        assert predicted == pytest.approx(truth.mean(), rel=0.15)
        assert "level_kept" not in report
        low, high = report["expected_calibration"]
        assert 0.6 < low < 1 < high < 1.7


def test_both_views_of_a_history_are_said(tmp_path):
    """What stops, calibrates and chooses a model is the view that predictions will have."""
    table = log(np.zeros(DAYS))
    history = HistorySettings(("place",), time="day", parts=("rate",))
    report = trained(table, tmp_path, history=history)
    assert list(report["views"]) == ["frozen", "rolling"]
    assert report["views"]["frozen"]["log_loss"] == report["test"]["log_loss"]
    assert report["views"]["rolling"]["log_loss"] != report["test"]["log_loss"]
    lines = list(outlook_lines(report))
    assert len(lines) == 3
    assert f"{report['views']['rolling']['log_loss']:.5f}" in lines[2]
    assert "expected between" in lines[0]
