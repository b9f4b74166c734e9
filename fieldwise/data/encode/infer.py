"""A first schema from training rows: which columns are fields, of which kind, and what to leave out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.kinds.kind import KINDS
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.schema import Field, Schema

SAMPLE_ROWS = 200_000


def infer_schema(
    sample: pa.Table, labels: NDArray[np.float32], label: str, weight: str = ""
) -> tuple[Schema, list[str]]:
    """A schema for these training rows, and notes on what was left out and why."""
    fields, notes = [], []
    for name in sample.column_names:
        if name in (label, weight):
            continue
        field = _infer_field(name, Sample(sample[name], labels))
        if field is None:
            notes.append(f"column '{name}' has another value in every row: left out as an identifier")
        else:
            fields.append(field)
    return Schema(label, tuple(fields), weight), notes


def _infer_field(name: str, sample: Sample) -> Field | None:
    """What the first kind that recognises the column makes of it; None where no kind does."""
    asked = sorted(KINDS.values(), key=lambda kind: kind.takes_the_rest)
    return next((field for kind in asked if (field := kind.infer(name, sample))), None)
