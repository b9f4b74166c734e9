"""The verdict on a candidate: against a slow twin, and by rows with a known answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.predictor import Predictor
from fieldwise.evaluation import metrics
from fieldwise.evaluation.significance import loss_gap
from fieldwise.follow import judge, versions
from tests.follow.days import day, follow, write_day


def drawn(seed, count=120):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count).astype(np.uint8)
    return [Predictions("newest", labels, random.uniform(0.1, 0.9, count)) for _ in range(2)]


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
