"""Raw rows -> probabilities: the one path that evaluation, `predict`, the estimator and a server share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise import bundle, metrics
from fieldwise.data.dataset import Dataset
from fieldwise.data.formats import as_table
from fieldwise.data.prepare import read_labels, read_weights
from fieldwise.data.schema import Schema
from fieldwise.errors import BundleError, DataError
from fieldwise.scoring import device_of, score


class Predictor:
    """A bundle ready to predict.

    `predict` takes a pandas, Polars or Arrow table or a list of dicts, with the schema's columns. A value
    never seen in training is the field's `other`; None, NaN and "" are its missing value.
    """

    def __init__(self, opened: bundle.Bundle, device: str = "cpu") -> None:
        self.bundle = opened
        self.encoder, self.calibration = opened.encoder, opened.calibration
        self.model = opened.model.to(device_of(device))

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Predictor:
        """Opens a run or a bundle folder."""
        return cls(bundle.load(Path(path)), device)

    @property
    def schema(self) -> Schema:
        return self.bundle.schema

    def predict(self, rows: Any) -> NDArray[np.float64]:
        """The probability of a response for each row, (n,). A dict may leave fields out: they are missing values."""
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            for number, row in enumerate(rows):
                if row and not set(row) & set(self.schema.columns):
                    found = ", ".join(map(str, row))
                    expected = ", ".join(self.schema.names)
                    raise DataError(f"a row needs at least one field of {expected}; found {found} (row {number + 1})")
            rows = {name: [row.get(name) for row in rows] for name in self.schema.columns}
        return self.probabilities(self.encoder.transform(as_table(rows)))

    def probabilities(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        """Encoded rows (n, C) -> calibrated probabilities (n,)."""
        return self.calibration.probabilities(score(self.model, ids))

    def annotate(self, chunks: Iterator[pa.Table], keep: bool = False) -> Iterator[pa.Table]:
        """Chunks of raw rows -> chunks with a `probability` column, the raw columns before it if they are kept."""
        for chunk in chunks:
            probability = pa.array(self.predict(chunk))
            kept = chunk.drop_columns(["probability"] if "probability" in chunk.column_names else [])
            yield (kept.append_column("probability", probability) if keep else pa.table({"probability": probability}))

    def evaluate(self, chunks: Iterator[pa.Table]) -> dict[str, Any]:
        """All metrics on raw rows that have the label column (and the weight column, where the schema has one)."""
        labels, probabilities, weights, passed = [], [], [], 0
        weight = self.schema.weight
        for chunk in chunks:
            if self.schema.label not in chunk.column_names:
                raise DataError(
                    f"evaluating needs the label column '{self.schema.label}', found: {', '.join(chunk.column_names)}"
                )
            labels.append(read_labels(chunk[self.schema.label], self.schema.label, passed))
            probabilities.append(self.predict(chunk))
            if weight in chunk.column_names:
                weights.append(read_weights(chunk[weight], weight, passed))
            passed += len(chunk)
        if not passed:
            raise DataError("there are no rows to evaluate")
        weighted = np.concatenate(weights) if weights else None
        return metrics.evaluate(np.concatenate(labels), np.concatenate(probabilities), weighted)

    def evaluate_prepared(self, folder: Path, part: str = "test") -> dict[str, Any]:
        """All metrics on a part of a prepared folder that has this bundle's encoder."""
        dataset = Dataset.open(folder)
        if part not in dataset.parts:
            raise BundleError(
                f"the prepared folder has no part '{part}'; it has: {', '.join(dataset.parts)} ({folder})"
            )
        if _files(self.bundle.path / "encoder") != _files(folder / "encoder"):
            raise BundleError(f"the folder was prepared with another encoder; evaluate the raw file instead ({folder})")
        rows = dataset.parts[part]
        return metrics.evaluate(rows.labels, self.probabilities(rows.ids), rows.weights)


def _files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
