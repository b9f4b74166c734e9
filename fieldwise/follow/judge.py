"""Is the candidate worse than the bundle in service? Both score rows that neither has learnt from.

Each row sees the history of all rows before it, as in a server that counts what comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.bundle.members import join, parts_of
from fieldwise.bundle.predictions import Predictions
from fieldwise.bundle.predictor import Predictor
from fieldwise.data.encode.later_rows import follow
from fieldwise.data.read.labels import read_labels, read_weights
from fieldwise.evaluation import metrics
from fieldwise.evaluation.significance import loss_gap

KEPT = ("log_loss", "auc", "calibration")


def scored(predictor: Predictor, before: Iterable[pa.Table], judged: Iterable[pa.Table]) -> Predictions:
    """A bundle's probabilities of the rows `judged`; its histories count the rows `before` them and, row by row, these.

    The predictor's histories change: open it for this alone.
    """
    schema, encoders = predictor.schema, [one for one, _ in parts_of(predictor.encoder)]
    counting = [encoder for encoder in encoders if encoder.counts_rows]
    for chunk in before if counting else ():
        labels = read_labels(chunk[schema.label], schema.label, 0, classes=schema.classes)
        for encoder in counting:
            follow(encoder, chunk, labels)
    pieces, weights = [], []
    for chunk in judged:
        labels = read_labels(chunk[schema.label], schema.label, 0, classes=schema.classes)
        past = {encoder: follow(encoder, chunk, labels) for encoder in counting}
        ids = [encoder.transform(chunk, *past.get(encoder, (None, None))) for encoder in encoders]
        pieces.append((labels, predictor.probabilities(join(predictor.encoder, ids))))
        if schema.weight:
            weights.append(read_weights(chunk[schema.weight], schema.weight, 0))
    found = [np.concatenate(own) for own in zip(*pieces, strict=True)]
    return Predictions("newest", found[0], found[1], np.concatenate(weights) if weights else None)


def measured(found: Predictions) -> dict[str, Any]:
    """The metrics that the journal keeps; an AUC needs both labels."""
    every = metrics.evaluate(found.labels, found.probabilities, found.weights)
    return {name: every[name] for name in KEPT}


@dataclass(frozen=True)
class Verdict:
    """What the newest rows say of a candidate and the bundle in service."""

    facts: dict[str, Any]
    accepted: bool
    why: str


def verdict(candidate: Predictions, current: Predictions, margin: float) -> Verdict:
    """A candidate is not worse while its log loss is above that of the current bundle by no more than `margin` standard
    errors of the difference."""
    gap, error, blocks = loss_gap(candidate, current)
    accepted = gap <= margin * error
    facts = {
        "rows": len(candidate.labels),
        "positives": int(candidate.labels.sum()),
        "current": measured(current),
        "candidate": measured(candidate),
        "difference": gap,
        "error": error,
        "blocks": blocks,
        "margin": margin,
    }
    return Verdict(facts, accepted, _words(gap, error, margin))


def _words(gap: float, error: float, margin: float) -> str:
    found = f"its log loss is {'higher' if gap > 0 else 'lower'} by {abs(gap):.5f} ± {error:.5f}"
    if gap <= 0:
        return found
    errors = f"{gap / error:.1f} standard errors" if error else "on every block alike"
    return f"{found}, {errors}: {'within' if gap <= margin * error else 'beyond'} the margin of {margin:g}"
