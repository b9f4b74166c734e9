"""A first schema from training rows: which columns are fields, of which kind, and what to leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
    sample: pa.Table, labels: NDArray[np.float32], label: str, weight: str = "", later: pa.Table | None = None
) -> tuple[Schema, list[str]]:
    """A schema for these first training rows, and notes on what was left out and why; `later` are the last ones."""
    names = [name for name in sample.column_names if name not in (label, weight)]

    def infer(name: str) -> _Inferred:
        return _infer_fields(name, sample_of(name, sample, labels, later))

    found = dict(zip(names, in_order(infer, names), strict=True))
    fields = [field for own in found.values() for field in own.fields]
    notes = [*_notes([name for name in names if not found[name].kind]), *_made_notes(found)]
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


def sample_of(name: str, first: pa.Table, labels: NDArray[np.float32], later: pa.Table | None) -> Sample:
    """A column of the first training rows, and of the last ones."""
    return Sample(first[name], labels, None if later is None else later[name])


def is_time(name: str, sample: Sample) -> bool:
    """Whether a column says when its rows came: the parts of a time come again, though it never does."""
    return any(kind.is_time and kind.infer_all(name, sample) is not None for kind in KINDS.values())


class _Inferred(NamedTuple):
    """The kind that has recognised a column, and the fields that it makes of it; no kind where none has."""

    kind: str
    fields: Sequence[Field]


def _made_notes(found: Mapping[str, _Inferred]) -> list[str]:
    """A line for each column that became fields of other names, or none."""
    notes = []
    for name, (kind, fields) in found.items():
        made = [field.name for field in fields]
        if kind and made != [name]:
            fate = (
                f"its fields are {' and '.join(made)}" if made else "none of its parts comes again, so it is no field"
            )
            notes.append(f"column '{name}' is a {kind}: {fate}")
    return notes


def _infer_fields(name: str, sample: Sample) -> _Inferred:
    """What the first kind that recognises the column makes of it."""
    for kind in sorted(KINDS.values(), key=lambda kind: (not kind.asked_first, kind.takes_the_rest)):
        fields = kind.infer_all(name, sample)
        if fields is not None:
            return _Inferred(kind.kind, fields)
    return _Inferred("", ())
