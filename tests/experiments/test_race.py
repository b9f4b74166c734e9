"""The usual models as a race: who is chosen, who has several seeds, and what a time limit leaves."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from fieldwise.bundle.predictor import Predictor
from fieldwise.data.dataset import Dataset, Part
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from fieldwise.experiments import entrants
from fieldwise.experiments.compare import compare
from fieldwise.experiments.race import ALONE, SEEDS, Budget, chosen
from tests.experiments.test_compare import run

ROWS = 4000


@pytest.fixture
def world():
    rng = np.random.default_rng(0)
    one, other, noise = rng.normal(size=(3, ROWS))
    noise[ROWS // 2 :] = -noise[: ROWS // 2]
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-2 * one - other))).astype(np.uint8)
    return Part(np.zeros((ROWS, 1), dtype=np.int32), labels), one, other, noise


def test_the_best_those_level_with_it_and_those_that_add_are_chosen(world):
    valid, one, other, noise = world
    logits = {
        "best": 2 * one + 0.1 * noise,
        "level": 2 * one - 0.1 * noise,
        "adds": 0.5 * other,
        "worse": 2 * one + 2 * noise,
    }
    assert chosen(logits, valid) == ["best", "level", "adds"]
    assert chosen({"only": noise}, valid) == ["only"]
    assert chosen({}, valid) == []


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("race") / "clicks"
    log = World("demo").log(2000).table
    prepare({"train": lambda: iter([log])}, folder, "click", keep_rows=True)
    return folder


def test_a_race_trains_chosen_trees_several_times_and_all_others_once(data, tmp_path, monkeypatch):
    monkeypatch.setitem(entrants.ON_RATES["gbdt"], "model.rounds", 20)
    found = [entrants._entrant(name, data) for name in ("gbdt-rates", "gbdt-order", "lr")]
    result = compare(found, data, tmp_path, members=[one.name for one in found], refit=False, device="cpu")
    seeds = {row["model"]: row["seeds"] for row in result["models"]}
    assert seeds["lr"] == 1
    most = max(seeds["gbdt-rates"], seeds["gbdt-order"])
    assert most == (SEEDS if min(seeds["gbdt-rates"], seeds["gbdt-order"]) > 1 else ALONE)
    page = (tmp_path / "index.html").read_text()
    assert f"over {most} seeds of the chosen trees, one seed of the others, on" in page
    assert "was stopped early" in page
    assert "--seeds" not in page  # the command of a race names none
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/seed*/DONE") if "blend" not in path.parts}
    again = compare(found, data, tmp_path, members=[one.name for one in found], refit=False, device="cpu")
    assert again["best"] == result["best"]
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_time_limit_leaves_the_best_of_what_was_trained(data, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("compare", data, "--models", "lr,fm", "--time", "0.001s", "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in found["models"]] == ["lr"]
    assert found["skipped"] == ["fm"]
    assert "refit_rows" not in found["best"]
    assert len(Predictor.load(out / "best").predict(World("demo").log(5).table)) == 5
    assert run("compare", data, "--models", "lr,fm", "--time", "soon", "--out", tmp_path / "other") == 2
    assert "--time takes a time such as 90s" in capsys.readouterr().err


def test_a_budget_is_shared_out():
    budget = Budget(100.0, time.monotonic())
    assert budget.at(0.6) == pytest.approx(budget.began + 60)
    assert budget.allows([])
    assert not Budget(1.0).allows([])
    assert Budget().at(0.6) == math.inf


def test_a_bundle_shares_the_files_of_its_encoder(data, tmp_path):
    """Many bundles with the same encoder take the room of one."""
    assert run("train", data, "--model", "lr", "--set", "train.epochs=1", "--out", tmp_path / "run", "--json") == 0
    ours, theirs = (folder / "encoder" / "vocabulary.parquet" for folder in (tmp_path / "run" / "bundle", data))
    assert ours.samefile(theirs)
    assert Dataset.open(data).parts["train"].rows
