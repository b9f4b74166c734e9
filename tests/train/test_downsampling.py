"""Training on a share of the negatives: who is dropped, and that probabilities are those among all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fieldwise.bundle import calibration
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.read import formats
from fieldwise.data.world import World, write_log
from fieldwise.evaluation.metrics import sigmoid
from fieldwise.train.loop import train


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("world") / "log.parquet"
    write_log(World("ipinyou", 0, 0.03), 30_000, file)
    return file


def prepared(log: Path, folder: Path, share: float) -> Dataset:
    prepare({"train": lambda: formats.read([log])}, folder, "click", keep_negatives=share)
    return Dataset.open(folder)


def test_only_negatives_of_the_training_rows_are_dropped(log: Path, tmp_path: Path):
    every, some = prepared(log, tmp_path / "every", 1.0), prepared(log, tmp_path / "some", 0.2)
    assert some.negatives_kept == 0.2
    for part in ("valid", "test"):
        assert np.array_equal(every.parts[part].labels, some.parts[part].labels)
    positives = [int(np.asarray(dataset.parts["train"].labels).sum()) for dataset in (every, some)]
    assert positives[0] == positives[1]
    negatives = [dataset.parts["train"].rows - positives[0] for dataset in (every, some)]
    assert negatives[1] / negatives[0] == pytest.approx(0.2, abs=0.01)


def test_the_correction_is_the_formula():
    p = np.array([0.001, 0.1, 0.5, 0.99])
    logits = np.log(p / (1 - p))
    for share in (0.5, 0.05, 1.0):
        found = calibration.Calibration(offset=float(np.log(share))).probabilities(logits)
        assert np.allclose(found, p / (p + (1 - p) / share), atol=1e-12)


@pytest.mark.parametrize("kind", ["none", "shift", "platt", "isotonic"])
def test_every_calibration_is_fitted_beyond_the_correction(kind: str):
    rng = np.random.default_rng(0)
    logits = rng.normal(-3, 1, 20_000)
    labels = rng.random(20_000) < sigmoid(logits)
    fitted = calibration.fit(kind, labels, logits - np.log(0.1), offset=float(np.log(0.1)))
    probabilities = fitted.probabilities(logits - np.log(0.1))
    assert probabilities.mean() == pytest.approx(labels.mean(), rel=0.05)
    assert fitted == calibration.Calibration.from_json(fitted.to_json())


@pytest.mark.parametrize("model", ["lr", "gbdt"])
@pytest.mark.parametrize("kind", ["none", "platt"])
def test_probabilities_are_those_among_all_rows(log: Path, tmp_path: Path, model: str, kind: str):
    if model == "gbdt":
        pytest.importorskip("xgboost")
    prepared(log, tmp_path / "data", 0.1)
    chosen = [f"model.name={model}", f"train.calibration={kind}", "device=cpu"]
    chosen += ["model.rounds=20"] if model == "gbdt" else ["train.epochs=4"]
    report = train(load_config(overrides=chosen), tmp_path / "data", tmp_path / "run")
    assert report["valid"]["positive_rate"] < 0.05
    # Within what 3,000 rows of 3 % positives can tell; without the correction it would be near 10.
    assert 0.7 < report["valid"]["calibration"] < 1.4
    raw = Predictor.load(tmp_path / "run").evaluate(formats.read([log]))
    assert 0.7 < raw["calibration"] < 1.4


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0, float("nan")])
def test_a_share_outside_of_0_and_1_is_refused(log: Path, tmp_path: Path, share: float):
    with pytest.raises(ConfigError, match="--keep-negatives takes a share above 0 and at most 1"):
        prepared(log, tmp_path / "data", share)
