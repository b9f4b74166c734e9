"""What ends a run of a comparison early: finished runs that leave it nothing to add, or a time."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest

from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Part
from fieldwise.train.loop import train
from fieldwise.train.race import FILE, NOISE, Race, Rivals, gain
from tests.conftest import Trained

ROWS = 4000


@pytest.fixture
def world() -> tuple[Part, np.ndarray, np.ndarray]:
    """Labels that two hidden causes decide, and the logits of each of them."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, ROWS)) * 1.5
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-one - other))).astype(np.uint8)
    return Part(np.zeros((ROWS, 1), dtype=np.int32), labels), one, other


def finished(folder: Path, logits: np.ndarray) -> Path:
    folder.mkdir()
    np.save(folder / FILE, logits.astype(np.float32))
    (folder / "DONE").touch()
    return folder


def test_a_run_is_judged_by_what_it_adds_not_by_its_own_loss(world, tmp_path):
    valid, one, other = world
    both = finished(tmp_path / "both", one + 0.8 * other)
    first = finished(tmp_path / "first", one)
    alone = Rivals.of([first], valid)
    # The other cause: its own loss is no better, yet the blend gains.
    assert gain(valid, alone.blend, 0.3 * other) > NOISE
    assert not alone.leave_nothing(0.3 * other, fall=0.0)
    # What the others have said already, noisily.
    noisy = one + np.random.default_rng(1).normal(size=ROWS)
    found = Rivals.of([first, both], valid)
    assert gain(valid, found.blend, noisy) < NOISE
    assert found.leave_nothing(noisy, fall=0.0)
    # A loss that still falls fast goes on, as does the first evaluation, before which nothing is known.
    assert not found.leave_nothing(noisy, fall=0.1)
    assert not found.leave_nothing(noisy, fall=math.inf)


def test_unfinished_runs_and_those_of_other_rows_are_no_rivals(world, tmp_path):
    valid, one, _ = world
    unfinished = finished(tmp_path / "unfinished", one)
    (unfinished / "DONE").unlink()
    other_rows = finished(tmp_path / "other", one[:10])
    assert Rivals.of([unfinished, other_rows, tmp_path / "nothing"], valid) is None


def test_a_race_ends_a_run_that_adds_nothing(trained: Trained, tmp_path: Path):
    """The same settings and seed once more add nothing to the finished run."""
    config = load_config(overrides=["model.name=fm", "train.epochs=12", "train.lr=0.01", "device=cpu"])
    whole = train(config, trained.data, tmp_path / "whole")
    again = train(config, trained.data, tmp_path / "again", race=Race((tmp_path / "whole",)))
    assert again["epochs"] < whole["epochs"]
    assert again["valid"]["log_loss"] >= whole["valid"]["log_loss"]


@pytest.mark.parametrize("model", ["fm", "gbdt"])
def test_a_run_whose_time_is_up_is_finished(trained: Trained, tmp_path: Path, model: str):
    config = load_config(overrides=[f"model.name={model}", "device=cpu"])
    report = train(config, trained.data, tmp_path / "run", race=Race(until=time.monotonic()))
    assert report["epochs"] == 1
    assert (tmp_path / "run" / "DONE").exists()
    assert math.isfinite(report["test"]["log_loss"])
