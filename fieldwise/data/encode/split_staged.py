"""Staged rows in the order of their file -> parts, once it is known how many there are, so that files are read once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.dataset import PARTS
from fieldwise.data.encode.staged import LABEL, read_staged, staged_file, staged_rows, value_type, write_staged


def cut_in_order(stage: Path, files: Iterable[tuple[int, int]], bounds: NDArray[np.float64]) -> None:
    """Moves training rows from the first bound on to validation, from the second on to test.

    `files` are the numbers of staged files and their rows. Killed at any moment, it may be done again.
    """
    first = 0
    for number, rows in files:
        parts = np.searchsorted(bounds, np.arange(first, first + rows), side="right")
        first += rows
        file = staged_file(stage, "train", number)
        if not parts.any() or not file.exists():
            continue
        if parts.min() == parts.max():
            target = staged_file(stage, PARTS[parts[0]], number)
            target.parent.mkdir(exist_ok=True)
            os.replace(file, target)
        elif staged_rows(file) == rows:
            _divide(stage, number, parts)


def _divide(stage: Path, number: int, parts: NDArray[np.int64]) -> None:
    """A file with rows of several parts; the training rows last, because until then all rows are in their file."""
    file = staged_file(stage, "train", number)
    table = read_staged(file)
    for place in range(len(PARTS) - 1, 0, -1):
        own = np.flatnonzero(parts == place)
        if len(own):
            write_staged(staged_file(stage, PARTS[place], number), own_words(table.slice(own[0], len(own))))
    kept = int((parts == 0).sum())
    if kept:
        write_staged(file, own_words(table.slice(0, kept)))
    else:
        file.unlink()


def own_words(rows: pa.Table) -> pa.Table:
    """With dictionaries that hold the texts of these rows only: texts of another part must not leak."""
    columns = [
        column.cast(value_type(column.type)).dictionary_encode() if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names)


def positives_of(file: Path) -> tuple[int, int]:
    """The rows of a staged file, and how many of them are positive."""
    labels = read_staged(file, [LABEL])[LABEL].to_numpy()
    return len(labels), int(labels.sum())
