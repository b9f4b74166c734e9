"""Encoders fitted on a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import Field, Schema


def fitted(rows: Any, folder: Path, *fields: Field) -> Encoder:
    """An encoder fitted on these rows and saved; every other row is positive."""
    table = as_table(rows)
    table = table.append_column("label", pa.array(np.arange(len(table)) % 2))
    schema = Schema("label", fields)
    prepare({"train": lambda: iter([table])}, folder, "label", schema, Split((1.0, 0.0, 0.0)), force=True)
    return Encoder.load(folder / "encoder", schema)


def ids_of(rows: Any, folder: Path, *fields: Field) -> list[Any]:
    """The ids of the rows that the encoder was fitted on, a number for each row of a single plain field."""
    encoder = fitted(rows, folder, *fields)
    ids = encoder.transform(as_table(rows))[:, : encoder.layout.id_columns]
    return ids[:, 0].tolist() if ids.shape[1] == 1 else ids.tolist()
