"""Leaving out rows whose cells are not what the schema says: a label that is none, a number that is none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.kinds.number import as_number
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.labels import ZERO_ONE, Classes
from fieldwise.data.read.texts import texts_of


def usable(
    bad: BadRows,
    path: Path,
    chunks: Iterable[pa.Table],
    label: str,
    numbers: Collection[str],
    classes: Classes = ZERO_ONE,
) -> Iterator[pa.Table]:
    """The rows that can be used, the others counted; all of them where nothing is to be skipped."""
    passed = 0
    for chunk in chunks:
        if not bad.skip:
            yield chunk
            continue
        keep, there = np.ones(len(chunk), dtype=bool), frozenset(chunk.column_names)
        for name in dict.fromkeys((label, *sorted(numbers))):
            if name in there:
                wrong, shown = _wrong(chunk[name], classes if name == label else None)
                rule = f"label '{name}' must be {classes}" if name == label else f"'{name}' must be a number"
                for row in np.flatnonzero(wrong & keep).tolist():
                    bad.add(path, f"row {passed + row + 1}", f"{rule}, found {shown(row)}")
                keep &= ~wrong
        passed += len(chunk)
        yield chunk if keep.all() else chunk.filter(pa.array(keep))


def _wrong(column: pa.ChunkedArray, classes: Classes | None) -> tuple[NDArray[np.bool_], Callable[[int], str]]:
    """Which cells are no label, or no number; and how to show one."""
    texts, places = texts_of(column)
    right = np.array([as_number(t) is not None if classes is None else classes.code(t) >= 0 for t in texts], dtype=bool)

    def shown(row: int) -> str:
        text = texts[places[row]]
        return "nothing" if text is None else repr(text[:40])

    return ~right[places], shown
