"""Raw rows -> probabilities, rankings and explanations in milliseconds: what a server puts behind HTTP.

Neither torch nor pickle is needed. The numbers are the predictor's, to what float32 keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import bundle
from fieldwise.bundle.members import Blend, blend_weights
from fieldwise.config.documents import read_json
from fieldwise.config.errors import DataError, unknown
from fieldwise.config.settings import Config
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.schema import Schema
from fieldwise.export.export import FACTS, network_folder
from fieldwise.nn.trees import Trees
from fieldwise.serving.contributions import EXACT, OCCLUSION, Terms, exact_terms, left_out, occluded, weighted
from fieldwise.serving.live_history import Column
from fieldwise.serving.row_coder import Row, RowCoder, column_of, ranked_column
from fieldwise.serving.sessions import NetworkScorer, Scorer, tree_scorer
from fieldwise.serving.vocabulary import FieldFacts, Words, facts_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Contribution:
    """What a field, or two fields together, add to a row's logit."""

    fields: tuple[str, ...]
    logit: float


@dataclass(frozen=True)
class Explanation:
    """Why a row has its probability: contributions, the largest first.

    `exact`: bias and contributions add up to the logit, which is the model's before calibration. Else `method` says how
    they were measured, and they need not add up. `values` are the row's own, in words.
    """

    probability: float
    logit: float
    bias: float
    values: dict[str, str]
    fields: tuple[Contribution, ...]
    pairs: tuple[Contribution, ...]
    exact: bool
    method: str


@dataclass(frozen=True)
class Member:
    """A model of a blend, or the only one: how its rows are encoded and scored, and its share of the logit."""

    config: Config
    coder: RowCoder
    scorer: Scorer
    tables: str
    weight: float = 1.0
    offset: float = 0.0

    def weigh(self, logits: NDArray[Any]) -> Floats:
        return self.weight * (logits.astype(np.float64) + self.offset)


class Engine:
    """A run, a bundle or an exported folder ready to serve. All methods may be called from several threads."""

    def __init__(self, folder: Path, members: Sequence[Member], shift: float = 0.0) -> None:
        self.members, self.shift = members, shift
        self.calibration = bundle.load_calibration(folder)
        self.version = bundle.digest_of(folder / "bundle.json")[:12]
        self._metrics = read_json(folder / "metrics.json")
        self._name = "blend" if (folder / Blend.file).is_file() else members[0].config.model
        self.coders = list({id(member.coder): member.coder for member in members}.values())
        facts: dict[str, FieldFacts] = {}
        words: dict[str, Words] = {}
        for coder in self.coders:
            facts = facts_of(coder.encoder, coder.raw.sources) | facts
            words = {code.field.name: Words(code) for code in coder.encoder.codes} | words
        self._words = words
        order = [name for coder in self.coders for name in (*coder.encoder.schema.columns, *coder.raw.sources)]
        self.fields = tuple(facts[name] for name in dict.fromkeys(order))
        # A row may also have what a raw file has and no field needs.
        self.columns = tuple(dict.fromkeys([*order, *(name for coder in self.coders for name in coder.raw.idle)]))
        self._known = frozenset(self.columns)
        self.has_history = any(coder.past for coder in self.coders)
        # A history changes while others read it.
        self._lock: Any = threading.Lock() if self.has_history else nullcontext()

    @classmethod
    def load(cls, path: str | Path, threads: int = 1) -> Engine:
        """Opens a run, a bundle or an exported folder; BundleError where it is none of them or damaged.

        A network that was not exported yet is exported into its bundle on first load, which needs torch once.
        """
        folder = bundle.checked(Path(path))
        with bundle.read_with_care(folder):
            if not (folder / Blend.file).is_file():
                return cls(folder, [_member(folder, threads, {})])
            weights, shift = blend_weights(folder / Blend.file)
            coders: dict[Any, RowCoder] = {}
            members = []
            for place, weight in zip(bundle.member_folders(folder), weights, strict=True):
                own = bundle.checked(place)
                members.append(_member(own, threads, coders, weight, bundle.load_calibration(own).offset))
            return cls(folder, members, shift)

    def search(self, field: str, prefix: str = "", limit: int = 20) -> list[str]:
        """Known values of a field that start with a prefix, whatever its case, the most frequent first."""
        self._check_names((field,), "")
        return self._words[field].search(prefix, limit) if field in self._words else []

    @property
    def model(self) -> dict[str, Any]:
        """Facts for people and monitors, as plain JSON."""
        return {
            "model": self._name,
            "version": self.version,
            "members": [
                {
                    "model": member.config.model,
                    "options": member.config.options,
                    "weight": member.weight,
                    "tables": member.tables,
                    "whole_rows_in_rank": member.scorer.whole,
                }
                for member in self.members
            ],
            "columns": list(self.columns),
            "history": self.has_history,
            "calibration": self.calibration.kind,
            "explanations": EXACT if self._exact else OCCLUSION,
            "metrics": self._metrics,
        }

    def check(self, row: Row, where: str = "") -> None:
        """Refuses a row with a name that is no column, with the nearest one."""
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
        ids = self._encoded(column_of(rows), len(rows))
        return self.calibration.probabilities(self._logits(ids))

    def rank(self, context: Row, candidates: Sequence[Row], top: int | None = None) -> tuple[NDArray[np.int64], Floats]:
        """The numbers of the best candidates, the most probable first, ties in their order, and their probabilities.

        A row is the context with the candidate's values over it. What is the same in all rows, and what the model makes
        of it, is computed once, once a set of context fields has come before; `model` says where that cannot be.
        """
        self.check(context, "context")
        for number, candidate in enumerate(candidates):
            self.check(candidate, f"candidate {number + 1}")
        if not len(candidates):
            return np.empty(0, dtype=np.int64), np.empty(0)
        found = self.calibration.probabilities(self._ranked(context, candidates))
        order = np.argsort(-found, kind="stable")[: len(found) if top is None else max(top, 0)]
        return order, found[order]

    def _ranked(self, context: Row, candidates: Sequence[Row]) -> Floats:
        """The logits of candidates over a context."""
        names = set().union(*candidates)
        column, once, count = ranked_column(context, candidates, names), column_of([context]), len(candidates)
        total = np.full(count, self.shift)
        for member in self.members:
            coder, rows = member.coder, member.coder.fields_of(names)
            others = [field for field in range(len(coder.names)) if field not in set(rows)]
            split = member.scorer.split(others) if rows else None
            with self._lock:
                if split:
                    shared, own = coder.ids(once, 1, others), coder.ids(column, count, rows)
                else:
                    own = coder.ids(column, count) if rows else coder.ids(once, 1)
            total += member.weigh(split(shared, own) if split else member.scorer.logits(own))
        return total

    def explain(self, row: Row) -> Explanation:
        """What each field and each pair of fields add to the row's logit, the largest first."""
        self.check(row)
        ids = self._encoded(column_of([row]), 1)
        logit = self._logits(ids)
        terms = self._terms(ids)
        values: dict[str, str] = {}
        for coder in self.coders:
            values = coder.words(row, ids[id(coder)][0]) | values
        return Explanation(
            probability=float(self.calibration.probabilities(logit)[0]),
            logit=float(logit[0]),
            bias=terms.bias,
            values=values,
            fields=_largest_first(((name,), term) for name, term in terms.fields.items()),
            pairs=_largest_first(terms.pairs.items()),
            exact=self._exact,
            method=EXACT if self._exact else OCCLUSION,
        )

    def history_event(self, row: Row, label: int, time: float | None = None) -> None:
        """Counts a row and its response in the histories, so that later rows see it; nothing without a history.

        `time` is in the units of the history's time column; without one it is the row's own, or else just after all
        that was counted. An event that is told late counts from the last moment that was counted: the same events in
        the same order always leave the same history.
        """
        self.check(row)
        if label not in (0, 1):
            raise DataError(f"an event's label is 0 or 1, found {label!r}")
        with self._lock:
            for coder in self.coders:
                coder.count(row, float(label), time)

    def value(self, row: Row, name: str) -> Any:
        """What a row has in a column, or what is made of its raw ones."""
        coder = next((coder for coder in self.coders if name in coder.encoder.schema.columns), self.coders[0])
        (found,) = coder.raw.over(column_of([row]))(name)
        return found

    @property
    def _exact(self) -> bool:
        return all(member.scorer.exact for member in self.members)

    def _encoded(self, column: Column, rows: int) -> dict[int, NDArray[np.int32]]:
        """The ids of rows by each coder."""
        with self._lock:
            return {id(coder): coder.ids(column, rows) for coder in self.coders}

    def _logits(self, ids: Mapping[int, NDArray[np.int32]]) -> Floats:
        total: Floats = sum(m.weigh(m.scorer.logits(ids[id(m.coder)])) for m in self.members) + self.shift  # type: ignore[assignment]
        return total

    def _terms(self, ids: Mapping[int, NDArray[np.int32]]) -> Terms:
        if not self._exact:
            names = list(dict.fromkeys(name for coder in self.coders for name in coder.names))
            return occluded(names, lambda asked: self._without(ids, asked))
        parts = []
        for member in self.members:
            assert isinstance(member.scorer, NetworkScorer)
            bias, fields, pairs = member.scorer.terms(ids[id(member.coder)])
            parts.append((member.weight, exact_terms(member.coder.names, bias + member.offset, fields, pairs)))
        return weighted(parts, self.shift)

    def _without(self, ids: Mapping[int, NDArray[np.int32]], asked: list[tuple[str, ...]]) -> Floats:
        """The logits of a row without some of its fields."""
        return self._logits({id(c): left_out(ids[id(c)], c.layout, c.names, asked) for c in self.coders})


def _member(
    folder: Path, threads: int, coders: dict[Any, RowCoder], weight: float = 1.0, offset: float = 0.0
) -> Member:
    """The model of a bundle folder; members whose encoders are the same files share one coder."""
    config = bundle.load_config(folder)
    files = bundle.digests(folder)
    key = tuple((name, d) for name, d in sorted(files.items()) if name == "schema.toml" or name.startswith("encoder/"))
    if key not in coders:
        coders[key] = RowCoder(Encoder.load(folder / "encoder", Schema.load(folder / "schema.toml")))
    coder = coders[key]
    if (folder / Trees.file).is_file():
        trees = tree_scorer(folder / Trees.file, coder.layout, config.options, threads)
        return Member(config, coder, trees, "", weight, offset)
    found = network_folder(folder)
    tables = read_json(found / FACTS)["tables"]
    return Member(config, coder, NetworkScorer(found, coder.layout, threads), tables, weight, offset)


def _at(where: str) -> str:
    return f" ({where})" if where else ""


def _largest_first(terms: Iterable[tuple[tuple[str, ...], float]]) -> tuple[Contribution, ...]:
    ordered = sorted(terms, key=lambda item: -abs(item[1]))
    return tuple(Contribution(fields, term) for fields, term in ordered)
