"""Raw rows -> probabilities, rankings and explanations in milliseconds; the server puts it behind HTTP.

Needs neither torch nor pickle. The numbers equal the predictor's within float32 precision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import bundle
from fieldwise.bundle.bundle import Opened
from fieldwise.bundle.members import join, parts_of
from fieldwise.config.errors import DataError, unknown
from fieldwise.evaluation.contributions import (
    EXACT,
    OCCLUSION,
    Explanation,
    Scored,
    Terms,
    exact_terms,
    largest_first,
    missing_row,
    occluded,
    weighted,
)
from fieldwise.serving.live_history import Column
from fieldwise.serving.row_coder import Row, RowCoder, column_of, ranked_column
from fieldwise.serving.sessions import NetworkScorer, Served, open_model
from fieldwise.serving.vocabulary import FieldFacts, Words, facts_of

Floats = NDArray[np.float64]


class Engine:
    """A run, a bundle or an exported folder ready to serve. All methods may be called from several threads."""

    def __init__(self, opened: Opened[Served]) -> None:
        self.bundle = opened
        self.version = bundle.digest_of(opened.path / "bundle.json")[:12]
        self.coders = [RowCoder(encoder) for encoder, _ in parts_of(opened.encoder)]
        self._layout = opened.encoder.layout
        self._coder_of = {id(coder.encoder): coder for coder in self.coders}
        facts: dict[str, FieldFacts] = {}
        words: dict[str, Words] = {}
        for coder in self.coders:
            facts = facts_of(coder.encoder, coder.raw.sources) | facts
            own = [code for code in coder.encoder.codes if not code.field.key]
            words = {code.field.column: Words(code) for code in own} | words
        self._words = words
        order = [name for coder in self.coders for name in (*coder.encoder.schema.columns, *coder.raw.sources)]
        self.fields = tuple(facts[name] for name in dict.fromkeys(order))
        # A row may also have columns of the raw file that no field needs.
        self.columns = tuple(dict.fromkeys([*order, *(name for coder in self.coders for name in coder.raw.idle)]))
        self._known = frozenset(self.columns)
        self.has_history = any(coder.counts_rows for coder in self.coders)
        # One thread may change a history while others read it.
        self._lock: Any = threading.Lock() if self.has_history else nullcontext()

    @classmethod
    def load(cls, path: str | Path, threads: int = 1) -> Engine:
        """Opens a run, a bundle or an exported folder; raises BundleError if it is damaged or none of these.

        The first load exports a network into its bundle if that was not done yet; only this needs torch.
        """
        folder = bundle.checked(Path(path))
        opened = bundle.opened(folder, partial(open_model, threads=threads), {})
        with bundle.read_with_care(folder):
            return cls(opened)

    def search(self, field: str, prefix: str = "", limit: int = 20) -> list[str]:
        """Known values of a field that start with a prefix, ignoring case, the most frequent first."""
        self._check_names((field,), "")
        return self._words[field].search(prefix, limit) if field in self._words else []

    @property
    def model(self) -> dict[str, Any]:
        """Facts about the model, as JSON values."""
        own, blend = self.bundle, self.bundle.blend
        members = zip(own.members or (own,), blend.members, blend.weights.tolist(), strict=True)
        return {
            "model": own.config.model,
            "version": self.version,
            "members": [
                {
                    "model": each.config.model,
                    "options": each.config.options,
                    "weight": weight,
                    "tables": member.model.tables,
                    "whole_rows_in_rank": member.model.whole,
                }
                for each, member, weight in members
            ],
            "columns": list(self.columns),
            "history": self.has_history,
            "calibration": own.calibration.kind,
            "explanations": EXACT if self._exact else OCCLUSION,
            "metrics": own.metrics,
        }

    def check(self, row: Row, where: str = "") -> None:
        """Refuses a row with an unknown column; the error suggests the nearest one."""
        if not isinstance(row, Mapping):
            raise DataError(f"a row is an object of fields and values, found {type(row).__name__}" + _at(where))
        if not self._known.issuperset(row):
            self._check_names(row, where)

    def _check_names(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if name not in self._known:
                raise DataError(unknown("field", str(name), self.columns) + _at(where))

    def predict(self, rows: Sequence[Row]) -> Floats:
        """Calibrated probabilities (n,). A value never seen is `other`, an absent field or None is missing."""
        for number, row in enumerate(rows):
            self.check(row, f"row {number + 1}")
        if not len(rows):
            return np.empty(0)
        return self.bundle.probabilities(self._ids(column_of(rows), len(rows)))

    def rank(self, context: Row, candidates: Sequence[Row], top: int | None = None) -> tuple[NDArray[np.int64], Floats]:
        """Indices of the best candidates, the most probable first (ties in their order), and their probabilities.

        A row is the context overwritten with the candidate's values. From the second request with the same context
        fields on, their part of the model is computed once for all rows; `model` says for which models it cannot be.
        """
        self.check(context, "context")
        for number, candidate in enumerate(candidates):
            self.check(candidate, f"candidate {number + 1}")
        if not len(candidates):
            return np.empty(0, dtype=np.int64), np.empty(0)
        found = self.bundle.calibration.probabilities(self._ranked(context, candidates))
        order = np.argsort(-found, kind="stable")[: len(found) if top is None else max(top, 0)]
        return order, found[order]

    def _ranked(self, context: Row, candidates: Sequence[Row]) -> Floats:
        """The logits of candidates over a context."""
        names = set().union(*candidates)
        column, alone, count = ranked_column(context, candidates, names), column_of([context]), len(candidates)
        each = []
        for member in self.bundle.blend.members:
            coder = self._coder_of[id(member.encoder)]
            rows = coder.fields_of(names)
            others = [field for field in range(len(coder.names)) if field not in set(rows)]
            split = member.model.split(others) if rows else None
            with self._lock:
                if split:
                    shared, own = coder.ids(alone, 1, others), coder.ids(column, count, rows)
                else:
                    own = coder.ids(column, count) if rows else coder.ids(alone, 1)
            logits = split(shared, own) if split else member.model.logits(member.read(own))
            each.append(member.corrected(logits if rows else np.repeat(logits, count)))
        return self.bundle.blend.weighted(each)

    def explain(self, row: Row) -> Explanation:
        """What each field and each pair of fields add to the row's logit, the largest first."""
        self.check(row)
        ids = self._ids(column_of([row]), 1)
        logit = self.bundle.logits(ids)
        terms = self._terms(Scored(ids, logit))
        values: dict[str, str] = {}
        for coder, (_, columns) in zip(self.coders, parts_of(self.bundle.encoder), strict=True):
            values = coder.words(row, ids[0, columns]) | values
        return Explanation(
            probability=float(self.bundle.calibration.probabilities(logit)[0]),
            logit=float(logit[0]),
            bias=terms.bias,
            values=values,
            fields=largest_first(((name,), term) for name, term in terms.fields.items()),
            pairs=largest_first(terms.pairs.items()),
            exact=self._exact,
            method=EXACT if self._exact else OCCLUSION,
        )

    def history_event(self, row: Row, label: int, time: float | None = None) -> None:
        """Counts a row and its response in the histories, for later rows; does nothing without a history.

        `time` is in the units of the history's time column; by default it is the row's, or else just after everything
        counted so far. An event that arrives late counts from the last time counted so far: the same events in the same
        order always give the same history.
        """
        self.check(row)
        if label not in (0, 1):
            raise DataError(f"an event's label is 0 or 1, found {label!r}")
        with self._lock:
            for coder in self.coders:
                coder.count(row, float(label), time)

    def value(self, row: Row, name: str) -> Any:
        """A row's value in a column, given or derived from its raw columns."""
        coder = next((coder for coder in self.coders if name in coder.encoder.schema.columns), self.coders[0])
        (found,) = coder.raw.over(column_of([row]))(name)
        return found

    @property
    def _exact(self) -> bool:
        return all(member.model.exact for member in self.bundle.blend.members)

    def _ids(self, column: Column, rows: int) -> NDArray[np.int32]:
        """The ids (n, C) of rows, joined over the encoders."""
        with self._lock:
            return join(self.bundle.encoder, [coder.ids(column, rows) for coder in self.coders])

    @cached_property
    def _blank(self) -> Scored:
        """The row in which every field is missing."""
        ids = join(self.bundle.encoder, [missing_row(coder.layout) for coder in self.coders])
        return Scored(ids, self.bundle.logits(ids))

    def _terms(self, row: Scored) -> Terms:
        """The terms of a row's logit."""
        if not self._exact:
            return occluded(self.bundle.logits, row, self._blank, self._layout, self.bundle.encoder.names)
        blend = self.bundle.blend
        parts = []
        for member, weight in zip(blend.members, blend.weights.tolist(), strict=True):
            assert isinstance(member.model, NetworkScorer)
            bias, fields, pairs = member.model.terms(member.own(row.ids))
            parts.append((weight, exact_terms(member.encoder.names, bias + member.offset, fields, pairs)))
        return weighted(parts, blend.shift)


def _at(where: str) -> str:
    return f" ({where})" if where else ""
