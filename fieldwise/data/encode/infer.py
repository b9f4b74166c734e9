"""A first schema from training rows: which columns are fields, of which kind, and what to leave out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.data.kinds.kind import KINDS
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.read.parallel import in_order
from fieldwise.data.schema import Field, Schema

SAMPLE_ROWS = 200_000
# Columns that are noted one by one when they are left out.
NOTED = 10


def infer_schema(
    sample: pa.Table, labels: NDArray[np.float32], label: str, weight: str = ""
) -> tuple[Schema, list[str]]:
    """A schema for these training rows, and notes on what was left out and why."""
    names = [name for name in sample.column_names if name not in (label, weight)]
    found = dict(
        zip(names, in_order(lambda name: _infer_field(name, Sample(sample[name], labels)), names), strict=True)
    )
    fields, left_out = [field for field in found.values() if field], [name for name in names if not found[name]]
    notes = _notes(left_out)
    if not fields:
        raise DataError(f"no column is left to predict '{label}' from: {'; '.join(notes)}; name fields with --schema")
    return Schema(label, tuple(fields), weight), notes


def _notes(names: list[str]) -> list[str]:
    """A line for each column that was left out, or one for all where they are many."""
    if len(names) <= NOTED:
        return [f"column '{name}' has another value in every row: left out as an identifier" for name in names]
    few = ", ".join(f"'{name}'" for name in names[:NOTED])
    return [
        f"{len(names):,} columns have another value in every row: left out as identifiers, {few} and "
        f"{len(names) - NOTED:,} more"
    ]


def _infer_field(name: str, sample: Sample) -> Field | None:
    """What the first kind that recognises the column makes of it; None where no kind does."""
    asked = sorted(KINDS.values(), key=lambda kind: kind.takes_the_rest)
    return next((field for kind in asked if (field := kind.infer(name, sample))), None)
