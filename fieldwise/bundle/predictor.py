"""Raw rows in tables and files -> probabilities, for `evaluate`, `predict` and the estimator.

From ids on, a server shares its code: `Opened.probabilities` in bundle.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.bundle import bundle
from fieldwise.bundle.members import as_served, join, parts_of
from fieldwise.bundle.scoring import device_of
from fieldwise.config.errors import BundleError, DataError
from fieldwise.data.dataset import Dataset, Part
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.later_rows import follow
from fieldwise.data.encode.on_demand import made
from fieldwise.data.encode.prepare import read_labels, read_weights
from fieldwise.data.kinds.number import as_number
from fieldwise.data.read.cells import Cells
from fieldwise.data.read.formats import as_table
from fieldwise.data.read.parallel import in_order
from fieldwise.data.read.texts import texts_of
from fieldwise.data.recipes import find
from fieldwise.data.recipes.raw_columns import cells_of
from fieldwise.data.schema import Schema
from fieldwise.evaluation import metrics
from fieldwise.evaluation.ranking import Ranking

# The metrics that `evaluate` gives of rows as they are served, where positions are fixed.
SERVED = ("auc", "log_loss", "calibration")


@dataclass(frozen=True)
class Labelled:
    """Raw rows with their ids (n, C), labels (n,), weights, and the probabilities (n,) of a model."""

    table: pa.Table
    ids: NDArray[np.int32]
    labels: NDArray[np.uint8]
    probabilities: NDArray[np.float64]
    weights: NDArray[Any] | None = None


class Predictor:
    """A bundle ready to predict.

    `predict` takes a pandas, Polars or Arrow table or a list of dicts, with the schema's columns. A value
    never seen in training is the field's `other`; None, NaN and "" are its missing value. Columns of a recipe that are
    not given are derived from the raw ones. A position is fixed: what a row says of it is not read.
    """

    def __init__(self, opened: bundle.Bundle, device: str = "cpu") -> None:
        self.bundle = opened
        self.encoder = opened.encoder
        # A bundle is opened on the CPU; trees there need no torch.
        self.model: Any = opened.model if device == "cpu" else opened.model.to(device_of(device))

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", only_scores: bool = False) -> Predictor:
        """Opens a run or a bundle folder; for who `only_scores`, with as little as scoring needs."""
        return cls(bundle.load(Path(path), only_scores), device)

    @property
    def schema(self) -> Schema:
        return self.bundle.schema

    def predict(self, rows: Any) -> NDArray[np.float64]:
        """The probability of a response for each row, (n,). Fields that a dict leaves out are missing values."""
        columns, recipe = self.schema.columns, find(self.schema.recipe) if self.schema.recipe else None
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            if recipe:
                columns = recipe.given(columns, {name for row in rows for name in row})
            for number, row in enumerate(rows):
                if row and not set(row) & set(columns):
                    found = ", ".join(map(str, row))
                    expected = ", ".join(self.schema.columns)
                    raise DataError(f"a row needs at least one field of {expected}; found {found} (row {number + 1})")
            rows = {name: [row.get(name) for row in rows] for name in columns}
        return self.probabilities(self._ids(as_table(rows)))

    def probabilities(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        """Encoded rows (n, C) -> calibrated probabilities (n,)."""
        return self.bundle.probabilities(ids)

    def annotate(self, chunks: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Chunks of raw rows -> the same chunks with a `probability` column at the end."""
        for chunk in chunks:
            kept = chunk.drop_columns(["probability"] if "probability" in chunk.column_names else [])
            yield kept.append_column("probability", pa.array(self.predict(chunk)))

    def predict_file(self, path: Path) -> Iterator[pa.Table]:
        """The rows of a file -> chunks of one column, `probability`."""
        chunks = cells_of(self.schema, path)
        for ids in in_order(self._ids, chunks):
            yield pa.table({"probability": pa.array(self.probabilities(ids))})

    def _ids(self, rows: pa.Table | Cells) -> NDArray[np.int32]:
        derived = find(self.schema.recipe).with_derived(rows) if self.schema.recipe else rows
        return self.encoder.transform(derived, served=True)

    def evaluate(self, chunks: Iterator[pa.Table], by: str = "") -> dict[str, Any]:
        """All metrics on raw rows with the label column (and the weight column, if the schema has one).

        `by` names any column; the result's `by` then holds the metrics for each of its values. Rows are judged at the
        positions where they were shown, and `served` has the metrics with these fixed, as in predictions.
        """
        ranking, served, groups = Ranking(), Ranking(), Groups(by)
        for rows in self.labelled(chunks, by):
            ranking.add(rows.labels, rows.probabilities, rows.weights)
            if self.shown(rows.table):
                fixed = self.probabilities(as_served(self.encoder, rows.ids))
                served.add(rows.labels, fixed, rows.weights)
            if by:
                groups.add(rows.table[by], rows.labels, rows.probabilities, rows.weights)
        found = metrics.measure(ranking) | ({"by": groups.measure()} if by else {})
        return found | self._served(metrics.measure(served) if served.rows else None)

    def shown(self, rows: pa.Table) -> bool:
        """Whether the model has positions, and the rows say all of them."""
        positions = {field.column for field in self.schema.fields if field.role}
        return bool(positions) and positions <= set(rows.column_names)

    def _served(self, found: dict[str, Any] | None) -> dict[str, Any]:
        """What `evaluate` says of positions; nothing of a model without one."""
        if not self.schema.positions:
            return {}
        used = "fixed" if found is None else "shown"
        return {"positions": used} | ({"served": {key: found[key] for key in SERVED}} if found else {})

    def labelled(self, chunks: Iterable[pa.Table], by: str = "", live: bool = False) -> Iterator[Labelled]:
        """Scores raw rows that have the label column and, if named, the column to group by.

        `live`: a history with a time column counts each row after the row was scored, as in a server.
        """
        passed = 0
        for chunk in chunks:
            for name in (self.schema.label, *([by] if by else ())):
                if name not in chunk.column_names:
                    role = "the label column" if name == self.schema.label else "the column to group by,"
                    found = ", ".join(chunk.column_names)
                    raise DataError(f"evaluating needs {role} '{name}', found: {found}")
            labels = read_labels(chunk[self.schema.label], self.schema.label, passed, classes=self.schema.classes)
            weights = None
            if self.schema.weight in chunk.column_names:
                weights = read_weights(chunk[self.schema.weight], self.schema.weight, passed)
            fixed = not self.shown(chunk)
            ids = self._live(chunk, labels, passed, fixed) if live else self.encoder.transform(chunk, served=fixed)
            yield Labelled(chunk, ids, labels, self.probabilities(ids), weights)
            passed += len(chunk)
        if not passed:
            raise DataError("there are no rows to evaluate")

    def _live(self, rows: pa.Table, labels: NDArray[np.uint8], passed: int, served: bool) -> NDArray[np.int32]:
        """The ids of rows; the histories then count these rows."""
        ids = []
        for encoder, _ in parts_of(self.encoder):
            past, sequences = follow(encoder, rows, labels, passed, timed=True)
            ids.append(encoder.transform(rows, past, sequences, served=served))
        return join(self.encoder, ids)

    def evaluate_prepared(self, folder: Path, part: str = "test", by: str = "") -> dict[str, Any]:
        """All metrics on a part of a folder prepared with this bundle's encoder; `by` names a field."""
        dataset, rows = self.prepared_part(folder, part)
        encoder = self.bundle.own_encoder
        field = _field(encoder, by, folder) if by else None
        probabilities = self.probabilities(rows.ids)
        found = metrics.evaluate(rows.labels, probabilities, rows.weights)
        if self.schema.positions:
            fixed = self.probabilities(encoder.served(rows.ids))
            found |= self._served(metrics.evaluate(rows.labels, fixed, rows.weights))
        if field is None:
            return found
        ids = np.asarray(rows.ids[:, dataset.layout.columns_of([field])[0]])
        grouped = metrics.evaluate_by(rows.labels, probabilities, ids, rows.weights)
        return found | {"by": _with_names(grouped, by, lambda group: encoder.value_of(field, group))}

    def prepared_part(self, folder: Path, part: str) -> tuple[Dataset, Part]:
        """A folder prepared with this bundle's encoder, and one of its parts."""
        dataset = Dataset.open(made(folder)).with_ranks
        if part not in dataset.parts:
            raise BundleError(
                f"the prepared folder has no part '{part}'; it has: {', '.join(dataset.parts)} ({folder})"
            )
        if not isinstance(self.encoder, Encoder) or not self.bundle.encoded(folder):
            raise BundleError(f"the folder was prepared with another encoder; evaluate the raw file instead ({folder})")
        return dataset, dataset.parts[part]


class Groups:
    """Rows of a raw file, grouped by the values of a column."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.known: dict[str, int] = {}
        self.pieces: list[tuple[NDArray[Any], ...]] = []

    def add(
        self,
        values: pa.ChunkedArray,
        labels: NDArray[np.uint8],
        probabilities: NDArray[np.float64],
        weights: NDArray[Any] | None,
    ) -> None:
        texts, places = texts_of(values)
        numbers = [self.known.setdefault("(missing)" if t is None else t, len(self.known)) for t in texts]
        piece = (labels, probabilities, np.array(numbers, dtype=np.int32)[places])
        self.pieces.append(piece if weights is None else (*piece, weights))

    def measure(self) -> dict[str, Any]:
        found = metrics.evaluate_by(*(np.concatenate(column) for column in zip(*self.pieces, strict=True)))
        names = list(self.known)
        found = _with_names(found, self.column, lambda group: names[group])
        found["values"] = found["values"] and sorted(found["values"], key=lambda row: _by_number(row["value"]))
        return found


def _with_names(found: dict[str, Any], column: str, name: Callable[[int], str]) -> dict[str, Any]:
    """The metrics by group, with the names of the groups; a column with very many values has no such list."""
    rows = found["values"]
    return {"column": column} | found | {"values": rows and [{"value": name(row.pop("group"))} | row for row in rows]}


def _by_number(text: str) -> tuple[float, str]:
    """A sort key: numbers by value, then words."""
    number = as_number(text)
    return (math.inf if number is None or number != number else number, text)


def _field(encoder: Encoder, name: str, folder: Path) -> int:
    """The index of the field to group by, which must have one id in each row."""
    if name not in encoder.names:
        known = ", ".join(encoder.names)
        raise DataError(f"a prepared folder knows only its fields, {known}; found --by {name} ({folder})")
    number = encoder.names.index(name)
    if encoder.layout.widths[number] > 1:
        kind = "interpolated number" if number in encoder.layout.ordered else encoder.codes[number].field.kind
        raise DataError(f"rows are grouped by a field of one value, found the {kind} '{name}' ({folder})")
    return number
