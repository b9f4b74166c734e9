"""The verdict on a candidate: against a slow twin, and by rows with a known answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.predictor import Predictor
from fieldwise.config.errors import ConfigError
from fieldwise.evaluation import metrics
from fieldwise.evaluation.significance import loss_gap
from fieldwise.follow import judge, versions
from tests.follow.days import day, follow, write_day


def predictions(probabilities, labels=None, weights=None):
    labels = np.tile([0, 1], len(probabilities) // 2) if labels is None else labels
    return Predictions("newest", labels.astype(np.uint8), np.asarray(probabilities), weights)


def drawn(seed, count=120, weighted=False):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    weights = random.random(count).astype(np.float32) if weighted else None
    return [predictions(random.uniform(0.1, 0.9, count), labels, weights) for _ in range(2)]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_gap_is_that_of_both_log_losses_and_its_error_that_of_blocks(weighted):
    one, other = drawn(1, weighted=weighted)
    gap, error, blocks = loss_gap(one, other, 10)
    both = [metrics.evaluate(each.labels, each.probabilities, each.weights)["log_loss"] for each in (one, other)]
    assert gap == pytest.approx(both[0] - both[1], abs=1e-12)
    weights = np.ones(120) if one.weights is None else one.weights.astype(float)
    away = []
    for block in range(10):
        total = 0.0
        for row in range(12 * block, 12 * block + 12):
            loss = [-np.log(p if y else 1 - p) for y, p in zip(one.labels, one.probabilities, strict=True)][row]
            rival = [-np.log(p if y else 1 - p) for y, p in zip(one.labels, other.probabilities, strict=True)][row]
            total += weights[row] * (loss - rival - gap)
        away.append(total / weights.sum())
    assert error == pytest.approx(np.sqrt(sum(one**2 for one in away) * 10 / 9))
    assert blocks == 10
    with pytest.raises(ConfigError, match="blocks must be from 6"):
        loss_gap(one, other, 3)


def test_the_margin_decides():
    one, other = drawn(3)
    if loss_gap(one, other)[0] < 0:
        one, other = other, one
    gap, error, _ = loss_gap(one, other)
    assert judge.verdict(one, other, 1.01 * gap / error).accepted
    refused = judge.verdict(one, other, 0.99 * gap / error)
    assert not refused.accepted
    assert "beyond the margin" in refused.why
    assert judge.verdict(other, one, 0.0).accepted
    assert judge.verdict(one, one, 0.0).accepted
    assert refused.facts["difference"] == pytest.approx(
        refused.facts["candidate"]["log_loss"] - refused.facts["current"]["log_loss"]
    )


@pytest.mark.parametrize("name", ["plain", "history"])
def test_both_are_scored_as_train_and_evaluate_score_them(tmp_path, runs, name):
    """The candidate's log loss is that of its run's test rows; the other's that of `evaluate --live`."""
    write_day(tmp_path / "logs", 3)
    journal = follow(tmp_path, runs[name])
    (judged,) = (entry for entry in journal.entries if entry["step"] == "judged")
    report = json.loads((versions.run_of(tmp_path / "work", 1) / "report.json").read_text())
    for metric in judge.KEPT:
        assert judged["candidate"][metric] == pytest.approx(report["test"][metric], abs=1e-6)
    predictor = Predictor.load(runs[name])
    (scored,) = predictor.labelled([day(3)], live=True)
    newest = slice(judged["rows"] * -1, None)
    found = metrics.evaluate(scored.labels[newest], scored.probabilities[newest])
    assert judged["current"]["log_loss"] == pytest.approx(found["log_loss"], abs=1e-6)
    assert judged["rows"] == 45


def test_chunks_do_not_matter(tmp_path, runs, monkeypatch):
    chunks = [day(3).slice(first, 60) for first in range(0, 300, 60)]
    whole = judge.scored(Predictor.load(runs["history"]), [day(3).slice(0, 240)], [day(3).slice(240)])
    pieces = judge.scored(Predictor.load(runs["history"]), chunks[:4], [day(3).slice(240, 7), day(3).slice(247)])
    np.testing.assert_allclose(whole.probabilities, pieces.probabilities, atol=1e-7)
