"""A run's predictions for its held-out rows, kept in its folder to compare runs row by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise.config.errors import BundleError
from fieldwise.config.files import whole_file
from fieldwise.data.dataset import Part

FILE = "predictions.parquet"


@dataclass(frozen=True)
class Predictions:
    """The rows of a part in order: labels (n,), probabilities (n,) and, if rows are weighted, weights (n,)."""

    part: str
    labels: NDArray[np.uint8]
    probabilities: NDArray[np.float32]
    weights: NDArray[np.float32] | None = None

    def save(self, run: Path) -> None:
        """Writes them into a run folder, in little more than 4 bytes a row."""
        columns: dict[str, Any] = {"label": self.labels, "probability": self.probabilities.astype(np.float32)}
        if self.weights is not None:
            columns["weight"] = self.weights
        table = pa.table({name: np.asarray(values) for name, values in columns.items()})
        with whole_file(run / FILE) as file:
            parquet.write_table(table.replace_schema_metadata({"part": self.part}), file)

    @classmethod
    def load(cls, run: Path) -> Predictions:
        """Reads the predictions of a finished run."""
        if not (run / "DONE").exists():
            raise BundleError(f"comparing row by row needs a finished run; train it with --resume to its end ({run})")
        try:
            table = parquet.read_table(run / FILE)
            weights = table["weight"].to_numpy() if "weight" in table.column_names else None
            part = (table.schema.metadata or {})[b"part"].decode()
            return cls(part, table["label"].to_numpy(), table["probability"].to_numpy(), weights)
        except (OSError, KeyError, pa.ArrowException) as error:
            problem = str(error).splitlines()[0]
            raise BundleError(f"the run's {FILE} is missing or damaged: {problem}; train it again ({run})") from None

    def same_rows(self, other: Predictions) -> bool:
        """Whether both are predictions for the same rows, judged by labels and weights."""
        return self.part == other.part and same_rows(self, other)


def same_rows(one: Predictions | Part, other: Predictions | Part) -> bool:
    """Whether both are the same rows in the same order, judged by labels and weights."""
    pairs: list[tuple[Any, Any]] = [(one.labels, other.labels), (one.weights, other.weights)]
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)
