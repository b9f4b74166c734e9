"""Label and weight columns of any type -> numbers; anything else is refused with its row."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import OddCell
from fieldwise.data.read.texts import texts_of


def read_weights(column: pa.ChunkedArray, name: str, passed: int = 0, source: str = "the rows") -> NDArray[np.float32]:
    """Weights of 0 or more; anything else is refused with its row."""
    texts, places = texts_of(column)
    weights = np.array([_weight(text) for text in texts])[places]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        found = texts[places[wrong[0]]]
        shown = "nothing" if found is None else repr(found[:40])
        problem = f"weights must be numbers of 0 or more, found {shown} in '{name}'"
        raise OddCell(problem, f"{source}, row {passed + wrong[0] + 1}", name, found)
    return weights.astype(np.float32)


def _weight(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def read_labels(
    column: pa.ChunkedArray, name: str = "label", passed: int = 0, source: str = "the rows"
) -> NDArray[np.uint8]:
    """0/1 of a label column, whatever its type; anything else is refused with its row."""
    texts, places = texts_of(column)
    codes = np.array([_label(text) for text in texts], dtype=np.int8)[places]
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        found = texts[places[row]]
        shown = "nothing" if found is None else repr(found[:40])
        problem = f"label '{name}' must be 0 or 1, found {shown}"
        raise OddCell(problem, f"{source}, row {passed + row + 1}", name, found)
    return codes.astype(np.uint8)


def _label(text: str | None) -> int:
    return {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}.get(text or "", -1)
