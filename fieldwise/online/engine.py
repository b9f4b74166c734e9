"""Raw rows -> probabilities, rankings and explanations in milliseconds: what a server puts behind HTTP."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.errors import DataError, unknown

Row = Mapping[str, Any]


@dataclass(frozen=True)
class FieldFacts:
    """A column of a request: its kind (categorical, numeric, set, or history and time for columns that are no fields),
    how many values are known, and a few of them, the most frequent first."""

    name: str
    kind: str
    size: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Contribution:
    """What a field, or two fields together, add to a row's logit; `value` is the row's own value in words."""

    fields: tuple[str, ...]
    logit: float


@dataclass(frozen=True)
class Explanation:
    """Why a row has its probability. `exact`: bias and contributions add up to the logit; else `method` says how the
    contributions were measured, and they need not add up."""

    probability: float
    logit: float
    bias: float
    values: dict[str, str]
    fields: tuple[Contribution, ...]
    pairs: tuple[Contribution, ...]
    exact: bool
    method: str


class Engine:
    """A run or a bundle ready to serve. All methods may be called from several threads."""

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | Path, threads: int = 1) -> Engine:
        """Opens a run, a bundle or an exported folder; BundleError where it is none of them or damaged."""
        from fieldwise.predictor import Predictor

        return cls(Predictor.load(path))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that a row may have: the fields, and the columns that histories are made of."""
        return tuple(self._predictor.schema.columns)

    @property
    def fields(self) -> tuple[FieldFacts, ...]:
        """What each column of `columns` is."""
        known = {field.name: field.kind for field in self._predictor.schema.fields}
        return tuple(FieldFacts(name, known.get(name, "history"), 0, ()) for name in self.columns)

    def search(self, field: str, prefix: str = "", limit: int = 20) -> list[str]:
        """Known values of a field that start with a prefix, whatever its case, the most frequent first."""
        self.check({field: None})
        return []

    @property
    def model(self) -> dict[str, Any]:
        """Facts for people and monitors: name, options, fields, metrics, whether it has a history. Plain JSON."""
        opened = self._predictor.bundle
        return {"model": opened.config.model, "path": str(opened.path), "metrics": opened.metrics}

    @property
    def has_history(self) -> bool:
        """Whether events change later probabilities."""
        return bool(getattr(self._predictor.encoder, "history", None))

    def check(self, row: Row, where: str = "") -> None:
        """Refuses a row with a name that is no column, with the nearest one, and with values that no column holds."""
        for name in row:
            if name not in self.columns:
                raise DataError(unknown("field", str(name), self.columns) + (f" ({where})" if where else ""))

    def predict(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """Calibrated probabilities (n,). A value never seen is `other`, an absent field or None is missing."""
        for number, row in enumerate(rows):
            self.check(row, f"row {number + 1}")
        if not rows:
            return np.empty(0)
        found: NDArray[np.float64] = self._predictor.predict([dict(row) for row in rows])
        return found

    def rank(
        self, context: Row, candidates: Sequence[Row], top: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The numbers of the best candidates, the most probable first, ties in their order, and their probabilities.

        A row is the context with the candidate's values over it.
        """
        found = self.predict([{**context, **candidate} for candidate in candidates])
        order = np.argsort(-found, kind="stable")[: len(found) if top is None else max(top, 0)]
        return order, found[order]

    def explain(self, row: Row) -> Explanation:
        """What each field and each pair of fields add to the row's logit, the largest first."""
        (probability,) = self.predict([row])
        return Explanation(float(probability), 0.0, 0.0, {}, (), (), False, "not there yet")

    def history_event(self, row: Row, label: int, time: float | None = None) -> None:
        """Counts a row and its response in the histories, so that later rows see it; nothing without a history.

        `time` is in the units of the history's time column, and at least that of the event before; without one it is
        the row's own, or else just after all that was counted.
        """
        self.check(row)
