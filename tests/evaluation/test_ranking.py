"""Rankings against counting every pair, in pieces and merged in any order."""

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from fieldwise.evaluation import metrics, ranking
from fieldwise.evaluation.ranking import Ranking

ROWS = some.lists(
    some.tuples(some.booleans(), some.integers(0, 6), some.floats(0, 4, width=32)), min_size=1, max_size=30
)


def counted(labels, scores, weights):
    """The AUC as it is defined: every pair of a positive and a negative row, in float64."""
    won = pairs = 0.0
    for (y, s, w), (other_y, other_s, other_w) in itertools.product(
        zip(labels, scores, weights, strict=True), repeat=2
    ):
        if y and not other_y:
            pairs += w * other_w
            won += w * other_w * (1.0 if s > other_s else 0.5 if s == other_s else 0.0)
    return won / pairs if pairs else math.nan


@given(ROWS)
def test_auc_equals_counting_pairs_with_ties_and_weights(rows):
    labels, scores, weights = map(np.array, zip(*rows, strict=True))
    for w in (None, weights):
        expected = counted(labels, scores, np.ones(len(rows)) if w is None else w.astype(np.float64))
        for kind in (np.float32, np.float64, np.int64):
            found = metrics.auc(labels, scores.astype(kind), w)
            assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(ROWS, some.lists(some.floats(0.001, 1), min_size=1, max_size=5))
def test_the_lowest_scores_are_those_of_sorted_rows(rows, shares):
    labels, scores, weights = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    weights += 0.5
    ranking = Ranking().add(labels, scores, weights)
    bounds = [share * weights.sum() for share in shares]
    for bound, found in zip(bounds, ranking.lowest(bounds), strict=True):
        left, expected = bound, np.zeros(3)
        for score in np.unique(scores):
            equal = scores == score
            weight = weights[equal].sum()
            taken = min(left, weight)
            expected += taken * np.array([1.0, (weights * labels)[equal].sum() / weight, score])
            left -= taken
        assert tuple(found) == pytest.approx(tuple(expected), abs=1e-6)


@given(ROWS, some.integers(1, 6), some.randoms(use_true_random=False), some.booleans())
def test_pieces_merge_in_any_order_to_the_same_number(rows, pieces, random, weighted):
    labels, scores, weights = map(np.array, zip(*rows, strict=True))
    whole = Ranking().add(labels, scores / 7, weights if weighted else None)
    parts = []
    for rows_of in np.array_split(np.array(random.sample(range(len(rows)), len(rows))), pieces):
        parts.append(Ranking().add(labels[rows_of], scores[rows_of] / 7, weights[rows_of] if weighted else None))
    random.shuffle(parts)
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    assert merged.rows == whole.rows
    if not weighted:
        assert merged.auc() == pytest.approx(whole.auc(), abs=0, nan_ok=True)
    assert merged.auc() == pytest.approx(whole.auc(), abs=1e-12, nan_ok=True)
    if whole.total > 1e-6:
        one, other = metrics.measure(whole), metrics.measure(merged)
        for key in ("log_loss", "rig", "calibration", "ece"):
            assert one[key] == pytest.approx(other[key], abs=1e-9)


def test_scores_that_come_in_many_pieces_are_sorted_in_as_they_come(monkeypatch):
    monkeypatch.setattr(ranking, "CHUNK", 16)
    random = np.random.default_rng(0)
    scores, labels, weights = random.random(1000), random.integers(0, 2, 1000), random.random(1000)
    found, weighted = Ranking(), Ranking()
    for first in range(0, 1000, 7):
        rows = slice(first, first + 7)
        found.add(labels[rows], scores[rows])
        weighted.add(labels[rows], scores[rows], weights[rows])
    assert found.auc() == metrics.auc(labels, scores)
    assert weighted.auc() == pytest.approx(metrics.auc(labels, scores, weights), abs=1e-12)


def test_scores_that_repeat_cost_little_and_stay_exact():
    labels, scores = np.array([0, 1] * 5000), np.array([0.1, 0.3, 0.2, 0.2] * 2500)
    found = Ranking().add(labels, scores)
    assert found.auc() == metrics.auc(labels[:4], scores[:4])
    assert len(found.positive.values) == len(found.negative.values) == 2
    more = Ranking().add(labels, scores, np.full(10_000, 0.5))
    assert found.merge(more).total == 15_000.0


def test_a_ranking_can_be_sent_to_another_process_and_merging_leaves_the_other_alone():
    first, second = (Ranking().add(np.array([0, 1]), np.array(scores)) for scores in ([0.1, 0.4], [0.4, 0.8]))
    merged = pickle.loads(pickle.dumps(first)).merge(second)
    assert (merged.auc(), merged.rows) == (0.875, 4)
    assert (second.auc(), second.rows, first.rows) == (1.0, 2, 2)


def test_one_class_or_a_score_that_is_no_number_has_no_auc():
    assert math.isnan(Ranking().auc())
    assert math.isnan(metrics.auc(np.ones(3), np.arange(3)))
    assert math.isnan(metrics.auc(np.array([0, 1, 1]), np.array([0.1, np.nan, 0.3])))
    assert math.isnan(metrics.auc(np.array([0, 1]), np.array([0.1, 0.2]), np.array([0.0, 1.0])))


@pytest.mark.parametrize("rows", [2_000_000_000, 5_000_000_000])
def test_counts_beyond_64_bits_do_not_wrap(rows):
    found = Ranking()
    found.positive.add(np.array([0.5, 0.7]), np.array([1, rows - 1]))
    found.negative.add(np.array([0.5]), np.array([rows]))
    assert found.auc() == pytest.approx((rows - 0.5) / rows, abs=1e-15)
