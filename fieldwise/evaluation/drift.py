"""How a model does as the world changes: on rows whose values training knew and on rows with `other`, day by day, and
compared with another model or the truth on the same rows.

Rows with `other` may be easier or harder than the rest, so the cost of `other` is measured on rows with known values:
they are scored a second time with the value hidden, as if it were `other` and had no past. The rise of their log loss
is the price of a value; the price times the share of `other` is the cost of `other` over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.bundle.members import JoinedEncoder, join, parts_of
from fieldwise.bundle.predictor import Groups, Labelled, Predictor
from fieldwise.config.errors import ConfigError, DataError, nearest
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.hiding import blank
from fieldwise.data.history.history import moments
from fieldwise.data.schema import FIRST, MISSING, OTHER
from fieldwise.evaluation import metrics
from fieldwise.evaluation.metrics import MOST_VALUES
from fieldwise.evaluation.ranking import Ranking

# `--seen all` stands for every field that has a vocabulary.
ALL = "all"
# The same model on the same rows with the value hidden.
HIDDEN = "hidden"
KEPT = ("rows", "positive_rate", "auc", "log_loss", "rig", "calibration")


@dataclass(frozen=True)
class Question:
    """How to split and compare rows.

    `seen`: fields and history keys; `by`: a column; `against`: another model; `truth`: a column of true probabilities;
    `live`: a history with a time column counts each row after the row was scored.
    """

    seen: tuple[str, ...] = ()
    by: str = ""
    against: Predictor | None = None
    truth: str = ""
    live: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """Names of what the model is compared with."""
        return (*(("against",) if self.against else ()), *(("truth",) if self.truth else ()))


class Slices:
    """Rows in numbered slices, each with a ranking by the model and by everything it is compared with."""

    def __init__(self, others: Sequence[str]) -> None:
        self.others = others
        self.rankings: dict[int, dict[str, Ranking]] = {}

    def add(self, slices: NDArray[np.int64], rows: Labelled, others: dict[str, NDArray[np.float64]]) -> None:
        for number in np.unique(slices).tolist():
            here = slices == number
            own = self.rankings.setdefault(number, {name: Ranking() for name in ("model", *self.others)})
            weights = None if rows.weights is None else rows.weights[here]
            for name, scores in {"model": rows.probabilities, **others}.items():
                own[name].add(rows.labels[here], scores[here], weights)

    def measure(self, number: int) -> dict[str, Any] | None:
        """The metrics of a slice, with the log loss of the others; None for a slice without rows."""
        own = self.rankings.get(number)
        if own is None or not own["model"].total:
            return None
        found = metrics.measure(own["model"])
        kept = {key: found[key] for key in KEPT}
        return kept | {f"log_loss_{name}": metrics.measure(own[name])["log_loss"] for name in self.others}


def evaluate(predictor: Predictor, chunks: Iterator[pa.Table], question: Question) -> dict[str, Any]:
    """The metrics of `Predictor.evaluate`, and the answers to the question: see `docs/drift.md`."""
    names = seen_names(predictor.encoder, question.seen)
    total, slices = Slices(question.others), {name: Slices((*question.others, HIDDEN)) for name in names}
    groups = {name: Groups(question.by) for name in ("model", *question.others)}
    values: dict[str, int] = {}
    for rows, others in _scored(predictor, chunks, question):
        total.add(np.zeros(len(rows.labels), dtype=np.int64), rows, others)
        places = np.zeros(len(rows.labels), dtype=np.int64)
        if question.by:
            for name, scores in {"model": rows.probabilities, **others}.items():
                groups[name].add(rows.table[question.by], rows.labels, scores, rows.weights)
            places = groups["model"].pieces[-1][2].astype(np.int64)
            values = groups["model"].known
        for name in names:
            masked = {HIDDEN: predictor.probabilities(hidden(predictor.encoder, name, rows.ids))}
            slices[name].add(2 * places + unseen(predictor.encoder, name, rows.ids), rows, others | masked)
    overall = {name: metrics.measure(ranking) for name, ranking in total.rankings[0].items()}
    found = overall.pop("model") | {f"log_loss_{name}": measured["log_loss"] for name, measured in overall.items()}
    if question.by:
        found["by"] = _by(groups)
    found["seen"] = [_seen(name, slices[name], _listed(found, values)) for name in names]
    return found


def evaluate_prepared(predictor: Predictor, folder: Path, part: str, seen: Sequence[str]) -> dict[str, Any]:
    """The metrics on a part of a prepared folder, and on its rows with known values and with `other`."""
    _, held = predictor.prepared_part(folder, part)
    rows = Labelled(pa.table({}), held.ids, held.labels, predictor.probabilities(held.ids), held.weights)
    found = metrics.evaluate(rows.labels, rows.probabilities, rows.weights)
    found["seen"] = []
    for name in seen_names(predictor.encoder, seen):
        slices, ids = Slices((HIDDEN,)), np.asarray(held.ids)
        masked = {HIDDEN: predictor.probabilities(hidden(predictor.encoder, name, ids))}
        slices.add(unseen(predictor.encoder, name, ids).astype(np.int64), rows, masked)
        found["seen"].append(_seen(name, slices, {}))
    return found


def _scored(
    predictor: Predictor, chunks: Iterator[pa.Table], question: Question
) -> Iterator[tuple[Labelled, dict[str, NDArray[np.float64]]]]:
    """Rows scored by the model, and the probabilities of the same rows by the others."""
    ours, theirs = tee(chunks)
    rival = question.against.labelled(theirs, live=question.live) if question.against else None
    if rival is None:
        del theirs  # tee would keep all rows for it
    for rows in predictor.labelled(ours, question.by, question.live):
        others = {} if rival is None else {"against": next(rival).probabilities}
        if question.truth:
            others["truth"] = _truth(rows.table, question.truth)
        yield rows, others


def _truth(rows: pa.Table, name: str) -> NDArray[np.float64]:
    if name not in rows.column_names:
        raise DataError(f"evaluating needs the column of the truth, '{name}', found: {', '.join(rows.column_names)}")
    found = moments(rows[name], name)
    if not ((found >= 0) & (found <= 1)).all():
        raise DataError(f"the truth must be a probability in every row, found another value in '{name}'")
    return found


def seen_names(encoder: Encoder | JoinedEncoder, names: Sequence[str]) -> list[str]:
    """The named fields and history keys; refuses names that are neither, and fields without a vocabulary."""
    encoders = [one for one, _ in parts_of(encoder)]
    fields = {f.name: f for one in encoders for f in one.schema.fields}
    able = [name for name, field in fields.items() if not field.why_always_known]
    keys = [key for one in encoders if one.history for key in one.history.settings.keys if key not in fields]
    asked = [each for name in names for each in (able if name == ALL else [name])]
    for name in asked:
        if name in fields and name not in able:
            why = f"'{name}': {fields[name].why_always_known}"
            raise ConfigError(f"--seen takes fields with a vocabulary, found {why}; choose from {', '.join(able)}")
        if name not in able and name not in keys:
            known = f"{nearest(name, able + keys)} there are: {', '.join(able + keys)}"
            raise ConfigError(f"--seen takes fields and history keys, found '{name}';{known}")
    return list(dict.fromkeys(asked))


def unseen(encoder: Encoder | JoinedEncoder, name: str, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which rows (n,) have `other` in a field or, for a history key, a combination that was never counted."""
    own, columns = next((one, columns) for one, columns in parts_of(encoder) if _knows(one, name))
    return _unseen(own, name, ids[:, columns])


def _unseen(encoder: Encoder, name: str, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    if name in encoder.schema.names:
        return np.asarray((_columns(encoder, name, ids) == OTHER).any(axis=1))
    assert encoder.history is not None
    parts = encoder.history.settings.parts
    if "rate" in parts:  # it is missing where nothing was counted
        return np.asarray(_columns(encoder, f"{name}:rate", ids)[:, 0] == MISSING)
    if "count" not in parts:
        raise ConfigError(f"--seen needs the rate or the count of '{name}' among the history's parts, found {parts[0]}")
    return np.asarray((_columns(encoder, f"{name}:count", ids) == FIRST).all(axis=1))


def hidden(encoder: Encoder | JoinedEncoder, name: str, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The ids of the same rows with a value that was never seen: `other` in its field, no past in the history keys that
    it is part of; or with a new combination of values, whose key was never counted."""
    return join(encoder, [_hidden(one, name, ids[:, columns]) for one, columns in parts_of(encoder)])


def _hidden(encoder: Encoder, name: str, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    gap = blank(name, encoder.names, encoder.layout, encoder.schema.history, encoder.schema.lost_pasts)
    return encoder.with_leaves(gap.put(ids))


def _knows(encoder: Encoder, name: str) -> bool:
    return name in encoder.schema.names or bool(encoder.history and name in encoder.history.settings.keys)


def _column_indices(encoder: Encoder, name: str) -> list[int]:
    return [int(place) for place in encoder.layout.columns_of([encoder.names.index(name)])]


def _columns(encoder: Encoder, name: str, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The id columns of one field."""
    return np.asarray(ids[:, _column_indices(encoder, name)])


def _by(groups: dict[str, Groups]) -> dict[str, Any]:
    """The metrics for each value of a column, with the log losses of the others."""
    found = groups["model"].measure()
    for name in list(groups)[1:]:
        rival = groups[name].measure()["values"] or []
        for row, other in zip(found["values"] or [], rival, strict=True):
            row[f"log_loss_{name}"] = other["log_loss"]
    return found


def _listed(found: dict[str, Any], values: dict[str, int]) -> dict[str, int]:
    """The listed values of the column, in order, with their numbers; empty if there are too many to list."""
    rows = (found.get("by") or {}).get("values") or []
    return {row["value"]: values[row["value"]] for row in rows[:MOST_VALUES]}


def _seen(name: str, slices: Slices, values: dict[str, int]) -> dict[str, Any]:
    """A field's line: rows with known values, rows with `other`, and the cost of `other`; also for each of `values`."""
    numbers = sorted(slices.rankings)
    merged = Slices(slices.others)
    for number in numbers:
        own = merged.rankings.setdefault(number % 2, {key: Ranking() for key in ("model", *slices.others)})
        for key, ranking in slices.rankings[number].items():
            own[key].merge(ranking)
    found = {"field": name} | _costs(merged.measure(0), merged.measure(1))
    if values:
        found["by"] = [
            {"value": value} | _costs(slices.measure(2 * number), slices.measure(2 * number + 1))
            for value, number in values.items()
        ]
    return found


def _costs(known: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    """Both slices, the share of rows with `other`, and its cost in log loss; see the top of this file."""
    rows = [0 if one is None else one["rows"] for one in (known, other)]
    share = rows[1] / sum(rows) if sum(rows) else 0.0
    price = known["log_loss_hidden"] - known["log_loss"] if known else None
    return {
        "share": share,
        "price": price,
        "cost": None if price is None else share * price,
        "seen": known,
        "other": other,
    }
