import numpy as np
import pytest

from fieldwise.bundle import calibration
from fieldwise.config.errors import ConfigError
from fieldwise.evaluation import metrics


@pytest.fixture
def rows():
    """Labels whose true logit is 0.5 x - 1, for a model that says x."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, 50_000)
    return (random.random(len(logits)) < metrics.sigmoid(0.5 * logits - 1)).astype(float), logits


def test_platt_finds_slope_and_shift(rows):
    fitted = calibration.fit("platt", *rows)
    assert fitted.slope == pytest.approx(0.5, abs=0.03)
    assert fitted.shift == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("kind", ["shift", "platt", "isotonic"])
def test_the_mean_prediction_becomes_the_observed_rate(rows, kind):
    labels, logits = rows
    fitted = calibration.fit(kind, labels, logits)
    assert fitted.probabilities(logits).mean() == pytest.approx(labels.mean(), rel=1e-3)
    before = metrics.log_loss(labels, metrics.sigmoid(logits))
    assert metrics.log_loss(labels, fitted.probabilities(logits)) < before


@pytest.mark.parametrize("kind", calibration.KINDS)
def test_order_is_kept_and_json_round_trips(rows, kind):
    fitted = calibration.fit(kind, *rows)
    assert (np.diff(fitted.probabilities(np.linspace(-8, 8, 100))) >= 0).all()
    assert calibration.Calibration.from_json(fitted.to_json()) == fitted


def test_weights_move_the_rate(rows):
    labels, logits = rows
    weights = np.where(labels > 0, 2.0, 1.0)
    fitted = calibration.fit("shift", labels, logits, weights)
    weighted = np.average(fitted.probabilities(logits), weights=weights)
    assert weighted == pytest.approx(np.average(labels, weights=weights), rel=1e-6)


def test_one_class_alone_is_left_as_it_is(rows):
    assert calibration.fit("platt", np.zeros(10), rows[1][:10]) == calibration.Calibration()


def test_a_falling_model_is_not_turned_round():
    random = np.random.default_rng(0)
    logits = random.normal(size=5000)
    labels = (random.random(5000) < metrics.sigmoid(-logits)).astype(float)
    assert calibration.fit("platt", labels, logits).slope > 0


def test_unknown_kind():
    with pytest.raises(ConfigError, match="did you mean 'platt'"):
        calibration.fit("plat", np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("kind", ["shift", "platt"])
def test_a_few_odd_rows_are_fitted_too(kind):
    """Far-off, nearly constant, separable or falling logits: the mean prediction is the observed rate all the same."""
    random = np.random.default_rng(0)
    for _ in range(100):
        rows = random.integers(10, 80)
        logits = random.normal(random.normal() * 3, random.choice([0.01, 0.3, 2, 8]), rows)
        labels = (random.random(rows) < random.choice([0.05, 0.2, 0.5])).astype(float)
        weights = (random.random(rows) < 0.5).astype(float)
        fitted = calibration.fit(kind, labels, logits, weights)
        if fitted.kind != "none":
            mean = np.average(fitted.probabilities(logits), weights=weights)
            assert mean == pytest.approx(np.average(labels, weights=weights), rel=1e-3)
