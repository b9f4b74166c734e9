import numpy as np
import pytest
from sklearn.metrics import log_loss as reference_log_loss
from sklearn.metrics import roc_auc_score

from fieldwise import metrics


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 500)
    scores = np.round(random.random(500) * 0.5 + labels * 0.2, 2)  # rounding makes ties
    return labels, np.clip(scores, 0.01, 0.99), random.random(500)


def test_auc_equals_counting_pairs(rows):
    labels, scores, _ = rows
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative[None, :]).mean() + 0.5 * (positive[:, None] == negative[None, :]).mean()
    assert metrics.auc(labels, scores) == pytest.approx(wins, abs=1e-12)


def test_auc_and_log_loss_equal_scikit_learn(rows):
    labels, scores, weights = rows
    for w in (None, weights):
        assert metrics.auc(labels, scores, w) == pytest.approx(roc_auc_score(labels, scores, sample_weight=w))
        expected = reference_log_loss(labels, scores, sample_weight=w)
        assert metrics.log_loss(labels, scores, w) == pytest.approx(expected)


def test_a_wrong_certainty_costs_a_bounded_loss():
    assert metrics.log_loss(np.array([1.0]), np.array([0.0])) == pytest.approx(-np.log(metrics.CLIP))


def test_base_rate_has_no_information_and_is_calibrated():
    labels = np.array([0, 0, 0, 1] * 50)
    found = metrics.evaluate(labels, np.full(200, 0.25))
    assert found["rig"] == pytest.approx(0.0)
    assert found["calibration"] == pytest.approx(1.0)
    assert found["auc"] == pytest.approx(0.5)
    assert found["rows"] == 200


def test_one_class_alone_has_no_auc():
    found = metrics.evaluate(np.zeros(10), np.full(10, 0.1))
    assert found["auc"] is None
    assert found["rig"] is None
    assert found["calibration"] is None


def test_weights_count_as_repetitions(rows):
    labels, scores, _ = rows
    weights = np.random.default_rng(1).integers(1, 4, len(labels))
    found = metrics.evaluate(labels, scores, weights)
    repeated = metrics.evaluate(np.repeat(labels, weights), np.repeat(scores, weights))
    for key in ("auc", "log_loss", "rig", "calibration"):
        assert found[key] == pytest.approx(repeated[key])


def test_sigmoid_does_not_overflow():
    assert metrics.sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.5, 1.0]


def test_reliability_of_calibrated_rows_lies_on_the_diagonal():
    random = np.random.default_rng(0)
    p = random.random(200_000)
    curve = metrics.reliability((random.random(len(p)) < p).astype(float), p)
    assert np.abs(np.subtract(curve["predicted"], curve["observed"])).max() < 0.02
    assert sum(curve["weight"]) == len(p)
