import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss as reference_log_loss
from sklearn.metrics import roc_auc_score

from fieldwise.config.errors import DataError
from fieldwise.evaluation import metrics
from fieldwise.evaluation.ranking import Ranking


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 500)
    scores = np.round(random.random(500) * 0.5 + labels * 0.2, 2)  # rounding makes ties
    return labels, np.clip(scores, 0.01, 0.99), random.random(500)


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
    for key in ("auc", "log_loss", "rig", "calibration", "ece"):
        assert found[key] == pytest.approx(repeated[key], rel=1e-2 if key == "ece" else 1e-9)


def test_logits_become_probabilities_in_one_place():
    """Rooms that draw data have sigmoids of their own, and what training adds to a loss or its gradient needs them."""
    written = re.compile(r"def _?sigmoid|torch\.sigmoid|\.sigmoid\(\)|\bexpit\b|1 / \(1 \+ (np\.exp|small)")
    package = Path(metrics.__file__).parents[1]
    files = [path for path in package.rglob("*.py") if written.search(path.read_text(encoding="utf-8"))]
    found = {path.relative_to(package).as_posix() for path in files}
    models = {name for name in found if name.split("/")[0] not in ("data", "studies", "speed")}
    of_training = {"nn/branch_losses.py", "nn/symmetric_growth.py", "train/steps/shallow_loops.py"}
    assert models == {"evaluation/metrics.py", *of_training}


def test_sigmoid_does_not_overflow():
    assert metrics.sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.5, 1.0]


def test_reliability_of_calibrated_rows_lies_on_the_diagonal():
    random = np.random.default_rng(0)
    p = random.random(200_000)
    curve = metrics.reliability(Ranking().add((random.random(len(p)) < p).astype(float), p))
    assert np.abs(np.subtract(curve["predicted"], curve["observed"])).max() < 0.02
    assert sum(curve["weight"]) == len(p)


@pytest.mark.parametrize("count", [1, 14, 15, 16, 1000])
def test_reliability_equals_averaging_groups_of_sorted_rows(count):
    random = np.random.default_rng(2)
    p, labels = random.random(count), random.integers(0, 2, count)
    groups = [rows for rows in np.array_split(np.argsort(p), 15) if len(rows)]
    curve = metrics.reliability(Ranking().add(labels, p))
    assert curve["predicted"] == pytest.approx([p[rows].mean() for rows in groups])
    assert curve["observed"] == pytest.approx([labels[rows].mean() for rows in groups])
    assert curve["weight"] == [len(rows) for rows in groups]


def test_bins_share_equal_probabilities_out_whatever_the_order_of_rows(rows):
    labels, scores, weights = rows
    order = np.random.default_rng(3).permutation(len(labels))
    for w in (None, weights):
        one = metrics.evaluate(labels, scores, w)
        other = metrics.evaluate(labels[order], scores[order], None if w is None else w[order])
        for key in ("predicted", "observed", "weight"):
            assert one["reliability"][key] == pytest.approx(other["reliability"][key])
        assert one["reliability"]["weight"] == pytest.approx([one["reliability"]["weight"][0]] * 15, rel=0.04)
    flat = metrics.evaluate(labels, np.full(len(labels), 0.5))["reliability"]
    assert flat["observed"] == pytest.approx([labels.mean()] * 15)


def test_rows_without_weight_have_nothing_to_measure():
    with pytest.raises(DataError, match="found 2 rows with a total weight of 0"):
        metrics.evaluate(np.array([0, 1]), np.array([0.1, 0.2]), np.zeros(2))


@pytest.mark.parametrize("weighted", [False, True])
def test_grouped_auc_equals_the_mean_over_groups(rows, weighted):
    labels, scores, weights = rows
    groups = np.random.default_rng(4).choice(["a", "b", "c", "one row", "d"], len(labels), p=[0.5, 0.3, 0.1, 0, 0.1])
    groups[7], labels[groups == "d"] = "one row", 0
    w = weights if weighted else np.ones(len(labels))
    areas, sizes, covered = [], [], 0
    for name in ("a", "b", "c"):
        own = groups == name
        areas.append(roc_auc_score(labels[own], scores[own], sample_weight=w[own]))
        sizes.append(w[own].sum())
        covered += own.sum()
    found = metrics.grouped_auc(labels, scores, groups, weights if weighted else None)
    assert found == {
        "auc": pytest.approx(np.average(areas, weights=sizes), abs=1e-12),
        "groups": 5,
        "groups_used": 3,
        "rows_covered": covered / len(labels),
    }


def test_grouped_auc_of_one_group_is_the_auc_and_none_without_pairs(rows):
    labels, scores, weights = rows
    one = np.zeros(len(labels))
    assert metrics.grouped_auc(labels, scores, one)["auc"] == pytest.approx(metrics.auc(labels, scores), abs=1e-15)
    alone = metrics.grouped_auc(labels, scores, np.arange(len(labels)), weights)
    assert (alone["auc"], alone["groups_used"], alone["rows_covered"]) == (None, 0, 0.0)


def test_metrics_by_group_are_those_of_its_rows_and_of_few_groups_only(rows):
    labels, scores, weights = rows
    groups = np.arange(len(labels)) % 3 * 10
    weights[groups == 20] = 0
    found = metrics.evaluate_by(labels, scores, groups, weights)
    assert [row["group"] for row in found["values"]] == [0, 10, 20]
    own = metrics.evaluate(labels[::3], scores[::3], weights[::3])
    assert found["values"][0] == {"group": 0} | {key: own[key] for key in list(found["values"][0])[1:]}
    assert [found["values"][2][key] for key in ("rows", "auc", "log_loss")] == [166, None, None]
    assert metrics.evaluate_by(labels, scores, np.arange(len(labels)) % 51, weights)["values"] is None


@pytest.mark.parametrize(
    ("wrong", "found"), [(np.nan, "nan"), (-0.1, "-0.1"), (1.5, "1.5"), (np.inf, "inf"), (-np.inf, "-inf")]
)
@pytest.mark.parametrize("label", [0, 1])
def test_what_is_no_probability_is_refused(wrong, found, label):
    labels, probabilities = np.array([0, 1, 0, 1, label]), np.array([0.0, 1.0, 0.5, 0.5, wrong])
    for measured in (metrics.evaluate, lambda *rows: metrics.evaluate_by(*rows, np.zeros(5, int))):
        with pytest.raises(DataError, match=f"^probabilities must be numbers from 0 to 1, found {found}; "):
            measured(labels, probabilities)
    metrics.evaluate(labels[:4], probabilities[:4])
    if not np.isnan(wrong):
        metrics.auc(labels, probabilities)  # scores of any kind may be ranked


def test_the_loss_of_the_base_rate(rows):
    labels, _, weights = rows
    for w in (None, weights):
        rate = np.average(labels, weights=w)
        assert metrics.base_loss(labels, w) == pytest.approx(metrics.log_loss(labels, np.full(len(labels), rate), w))
