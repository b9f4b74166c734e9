"""Which keys are worth a history: what `auto` stands for, measured on training rows alone.

On the first training rows, each key is counted as the history itself counts: from what came before, or from the other
folds. Its lift, count and positives go into a logistic model that is fitted on some of these rows and measured on
others: every second one, or with a time the last third, after a first third that only counts. Every model has the
fields themselves, so that a key must add to what they say: the first model is that of all fields' own rates and counts,
in one score. Then the choice is greedy: the next key is the one that lowers the held-out log loss the most on top of
all chosen so far. One that says the same as another adds nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.staged import LABEL, Progress, staged_chunks
from fieldwise.data.encode.timeline import row_moments, staged_columns
from fieldwise.data.history.counts import Counts, Floats
from fieldwise.data.history.history import History, fold_counts, folds_of, hashes_of, lifts, other_folds
from fieldwise.data.kinds.kind import BY_CELL
from fieldwise.data.schema import AUTO, HistorySettings

# Rows that the choice is made on, and the first of them, on which all crosses are screened; fewer where fields are so
# many that their cells would be more than this.
SAMPLE_ROWS, SCREEN_ROWS, SCREEN_CELLS = 200_000, 50_000, 20_000_000
# The fields that may be chosen and crossed, the best alone where there are more; and the crosses that may be chosen.
MOST_FIELDS, MOST_CROSSES = 40, 40
# A gain counts if it is above this share of the base rate's log loss and this many standard errors, or more of them
# where the best of very many candidates would pass by luck.
LEAST_GAIN, LEAST_ERRORS = 0.0002, 3.0
# Rows that the score of the fields is fitted on.
SCORE_ROWS = 25_000
# The most promising candidates, which are measured in full.
FINALISTS = 5
# Newton's steps of a fit, and a pull towards 0 that only decides between features that are one and the same.
STEPS, RIDGE = 8, 0.01


@dataclass(frozen=True)
class Proposal:
    """A chosen key: the share of the base rate's log loss that it saves alone, and on top of all before it."""

    key: str
    alone: float
    on_top: float


def propose(encoder: Encoder, staged: Path, settings: HistorySettings, progress: Progress) -> list[Proposal]:
    """The keys that `auto` stands for, in the order of the choice, from the first of the staged training rows.

    Candidates are the categories and numbers among the fields, if a key can name them, and crosses of two of them; the
    keys that the settings name count as chosen.
    """
    plain = [field.name for field in encoder.schema.fields if field.history_key != BY_CELL and not field.role]
    able = [name for name in plain if "*" not in name and name.partition(":")[0] != AUTO]
    fields = [name for name in able if name != settings.time]
    if not fields:
        return []
    few = Sample.read(encoder, staged, settings, fields, min(SCREEN_ROWS, max(1, SCREEN_CELLS // len(fields))))
    if not few.can_be_measured:
        return []
    fields, crosses, candidates = _screened(few, fields, progress)
    sample = Sample.read(encoder, staged, settings, fields, SAMPLE_ROWS)
    return _chosen(sample, fields, crosses, max(LEAST_ERRORS, math.sqrt(2 * math.log(candidates))), progress)


def _screened(few: Sample, fields: Sequence[str], progress: Progress) -> tuple[list[str], list[str], int]:
    """The fields and the crosses that may be chosen, and among how many they were sought."""
    base = Additive(few)
    gains = {name: base.gain(few.features(name))[0] for name in fields}
    best = sorted(fields, key=lambda name: -gains[name])[:MOST_FIELDS]
    kept = [name for name in fields if name in best]
    model = _of_fields(few, [few.features(name) for name in kept])
    crosses = {}
    for one, other in itertools.combinations(kept, 2):
        crosses[f"{one}*{other}"] = model.gain(few.features(f"{one}*{other}"))[0]
        progress("proposing", len(crosses))
    return kept, sorted(crosses, key=lambda key: -crosses[key])[:MOST_CROSSES], len(fields) + len(crosses)


def _chosen(
    sample: Sample, fields: Sequence[str], crosses: Sequence[str], errors: float, progress: Progress
) -> list[Proposal]:
    """The greedy choice. Where others are within a standard error of the best, the first of the simplest is taken."""
    features = {key: sample.features(key) for key in (*fields, *crosses)}
    model, base = _of_fields(sample, [features[name] for name in fields]), Additive(sample)
    for key in sample.settings.named:
        model.add(sample.features(key))
    named = [set(key.split("*")) for key in sample.settings.named]
    left = [key for key in features if set(key.split("*")) not in named]
    found: list[Proposal] = []
    while left and len(found) < sample.settings.proposals:
        promises = {key: model.promise(features[key]) for key in left}
        finalists = sorted(left, key=lambda key: -promises[key])[:FINALISTS]
        gains = {key: model.gain(features[key]) for key in finalists}
        least = LEAST_GAIN * base.loss
        sure = {key: (gain, error) for key, (gain, error) in gains.items() if gain > max(least, errors * error)}
        if not sure:
            break
        bar = max(gain - error for gain, error in sure.values())
        key = min((key for key in left if key in sure and sure[key][0] >= bar), key=lambda key: key.count("*"))
        model.add(features[key])
        left.remove(key)
        alone, _ = base.gain(features[key])
        found.append(Proposal(key, alone / base.loss, sure[key][0] / base.loss))
        progress("choosing", len(found))
    return found


def _of_fields(sample: Sample, features: Sequence[Parts]) -> Additive:
    """The model of what the fields say alone; their additive score, fitted on some rows, is its one feature."""
    every = -(-len(sample.parts.fitted) // SCORE_ROWS)
    design = np.hstack([seen.fitted[::every] for seen in features]).astype(np.float64)
    design = np.hstack([np.ones((len(design), 1)), design])
    labels = sample.labels[sample.parts.fitted[::every]]
    own = fit_logistic(design, labels, np.zeros(design.shape[1]))[1:].reshape(len(features), -1)
    scores = [sum(seen[part] @ weights for seen, weights in zip(features, own, strict=True)) for part in (0, 1)]
    model = Additive(sample)
    model.add(_standard(Parts(*(np.asarray(score)[:, None] for score in scores))))
    return model


class Parts(NamedTuple):
    """Something of the rows that models are fitted on, and of those that they are measured on."""

    fitted: NDArray[Any]
    held: NDArray[Any]


class Sample:
    """Training rows: hashes of their fields, labels, and their moments, which rise, or their folds."""

    def __init__(
        self,
        settings: HistorySettings,
        hashes: Mapping[str, NDArray[np.uint64]],
        labels: Floats,
        when: NDArray[Any],
    ) -> None:
        self.settings, self.hashes, self.labels, self.when = settings, hashes, labels, when
        rows = np.arange(len(labels))
        share = rows * 3 // len(rows) if settings.time else 1 + rows % 2
        self.parts = Parts(rows[share == 1], rows[share == 2])

    @classmethod
    def read(
        cls, encoder: Encoder, staged: Path, settings: HistorySettings, fields: Sequence[str], rows: int
    ) -> Sample:
        """The first staged rows, in the order of time where there is one."""
        time, names = settings.time, list(dict.fromkeys([*fields, *settings.columns]))
        hashes, labels, when, first = [], [], [], 0
        for chunk in staged_chunks(staged, staged_columns(settings, names)):
            chunk = chunk.slice(0, rows - first)
            hashes.append(hashes_of(chunk, names, encoder.buckets(chunk, names)))
            labels.append(chunk[LABEL].to_numpy().astype(np.float64))
            when.append(row_moments(chunk, time, "train", first) if time else folds_of(settings, chunk, first))
            first += len(chunk)
            if first == rows:
                break
        moments = np.concatenate(when)
        order = np.argsort(moments, kind="stable") if settings.time else np.arange(first)
        joined = {name: np.concatenate([piece[name] for piece in hashes])[order] for name in names}
        return cls(settings, joined, np.concatenate(labels)[order], moments[order])

    @property
    def can_be_measured(self) -> bool:
        """Whether a gain can be measured: both labels are among the fitted and the held-out rows."""
        return all(len(rows) and 0 < self.labels[rows].mean() < 1 for rows in self.parts)

    def features(self, key: str) -> Parts:
        """What the rows see of a key (n, 3): its lift, count and positives, each with mean 0 and deviation 1."""
        history = History(replace(self.settings, keys=(key,)))
        keys = history.mixed_keys(self.hashes)
        if self.settings.time:
            found = history.replayed(keys, self.labels, self.when)
        else:
            inside = Counts(self.settings.most_keys)
            fold_counts(history, keys, self.labels, self.when, inside)
            found = other_folds(history, keys, self.when, inside)
        # Counts that grow with time would tell the later rows from the earlier ones; their shares do not.
        shares = found[:, 0] / np.maximum(found[:, -1, :1], 1)
        seen = np.hstack([lifts(found, self.settings.strength), np.log1p(shares * len(shares))])
        return _standard(Parts(*(seen[rows] for rows in self.parts)))


def _standard(features: Parts) -> Parts:
    """Features with mean 0 and deviation 1 among the fitted rows, in half the memory."""
    mean, deviation = features.fitted.mean(axis=0), np.maximum(features.fitted.std(axis=0), 1e-9)
    return Parts(*(((part - mean) / deviation).astype(np.float32) for part in features))


class Additive:
    """A logistic model of features: fitted on some of a sample's rows, measured on others."""

    def __init__(self, sample: Sample) -> None:
        self.labels = Parts(*(sample.labels[rows] for rows in sample.parts))
        self.design = Parts(*(np.ones((len(labels), 1)) for labels in self.labels))
        self.coefficients = np.zeros(1)
        self.add(Parts(*(np.empty((len(labels), 0)) for labels in self.labels)))

    @property
    def loss(self) -> float:
        """The mean log loss of the held-out rows."""
        return float(self._losses.mean())

    def add(self, features: Parts) -> None:
        """Takes features (n, d) into the model."""
        self.coefficients, self._losses = self._with(features)
        self.design = _joined(self.design, features)
        rates = 1 / (1 + np.exp(-(self.design.fitted @ self.coefficients)))
        self._rest, self._weights = self.labels.fitted - rates, (rates * (1 - rates))[:, None]
        self._weighted = self.design.fitted * self._weights
        self._curve = self._weighted.T @ self.design.fitted + RIDGE * np.eye(len(self.coefficients))
        self._logits = self.design.held @ self.coefficients

    def gain(self, features: Parts) -> tuple[float, float]:
        """By how much these features lower the mean held-out loss, and the standard error of that."""
        gains = self._losses - self._with(features)[1]
        return float(gains.mean()), float(gains.std() / math.sqrt(len(gains)))

    def promise(self, features: Parts) -> float:
        """About the gain of features, at a small part of its cost: that of one step of Newton's, or of half a step."""
        fitted = features.fitted.astype(np.float64)
        both = self._weighted.T @ fitted
        own = fitted.T @ (fitted * self._weights) + RIDGE * np.eye(fitted.shape[1])
        old = np.linalg.solve(self._curve, both)
        step = np.linalg.solve(own - both.T @ old, fitted.T @ self._rest)
        move = features.held @ step - self.design.held @ (old @ step)
        moved = (losses(self._logits + part * move, self.labels.held) for part in (1, 0.5))
        return self.loss - min(float(after.mean()) for after in moved)

    def _with(self, features: Parts) -> tuple[Floats, Floats]:
        """The coefficients with these features, and the held-out rows' losses."""
        design = _joined(self.design, features)
        start = np.append(self.coefficients, np.zeros(features.held.shape[1]))
        coefficients = fit_logistic(design.fitted, self.labels.fitted, start)
        return coefficients, losses(design.held @ coefficients, self.labels.held)


def _joined(design: Parts, features: Parts) -> Parts:
    return Parts(*(np.hstack(pair) for pair in zip(design, features, strict=True)))


def fit_logistic(design: Floats, labels: Floats, start: Floats) -> Floats:
    """Coefficients (d,) of a logistic model of rows (n, d), by Newton's steps, halved where they overshoot."""
    ridge = RIDGE * np.eye(design.shape[1])

    def cost(at: Floats) -> float:
        return float(losses(design @ at, labels).sum() + at @ ridge @ at / 2)

    coefficients, now = start, cost(start)
    for _ in range(STEPS):
        rates = 1 / (1 + np.exp(-(design @ coefficients)))
        slope = design.T @ (labels - rates) - ridge @ coefficients
        curve = design.T @ (design * (rates * (1 - rates))[:, None]) + ridge
        step = np.linalg.solve(curve, slope)
        before = now
        while (now := cost(coefficients + step)) > before and np.abs(step).max() > 1e-6:
            step = step / 2
        if now >= before:
            break
        coefficients = coefficients + step
        if before - now < 1e-7 * len(labels):
            break
    return coefficients


def losses(logits: Floats, labels: Floats) -> Floats:
    """The log loss of each row: log(1 + exp(logit)) - label * logit, by functions that numpy has fast."""
    return np.asarray(np.log(1 + np.exp(-np.abs(logits))) + np.maximum(logits, 0) - labels * logits)
