"""Labelled rows that came after the training rows: their history and sequences, which then have counted them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.history.history import History, every_moment
from fieldwise.data.schema import ROW_ORDER


class Followed(NamedTuple):
    """What rows saw before each came: history fields (n, H), if there are any, and the ids (n, N) of sequences."""

    history: NDArray[np.int32] | None
    sequences: dict[str, NDArray[np.int32]]


def follow(encoder: Encoder, rows: pa.Table, labels: NDArray[Any], passed: int = 0, timed: bool = False) -> Followed:
    """What rows saw before each came; after the call, history and sequences have counted them all.

    With a time the rows go through in its order, as in `prepare`, each seeing those of the same call that came before
    it. Without one they see what was counted before the call, and are not counted if only what is `timed` shall
    follow. `passed` rows of the same file came before these.
    """
    sequences = encoder.pasts.follow(rows, partial(encoder.buckets, rows), labels, passed)
    counts = encoder.history is not None and (encoder.history.settings.time or not timed)
    return Followed(_follow_history(encoder, encoder.history, rows, labels, passed) if counts else None, sequences)


def _follow_history(
    encoder: Encoder, history: History | None, rows: pa.Table, labels: NDArray[Any], passed: int
) -> NDArray[np.int32]:
    assert history is not None
    keys = encoder.keys(rows)
    if not history.settings.time:
        fields = history.seen(rows, encoder.buckets(rows))
        history.counts.add(keys, labels)
        return fields
    times = _times(history, rows, passed)
    order = np.argsort(times, kind="stable")
    if len(order) and times[order[0]] < history.end:
        row, column = passed + int(order[0]) + 1, history.settings.time
        found = f"it has come to {history.end:g}, found {times[order[0]]:g} in '{column}' (row {row})"
        raise DataError(f"history runs forward: {found}; leave out what it has counted, and sort the file by {column}")
    fields = np.empty((len(keys), len(history.names)), dtype=np.int32)
    fields[order] = history.replay(keys[order], labels[order], times[order])
    return fields


def _times(history: History, rows: pa.Table, passed: int) -> NDArray[np.float64]:
    """The moments of rows, each of which must have one; where the order is the time, they go on from the last."""
    name = history.settings.time
    if name == ROW_ORDER:
        return np.asarray(history.end + 1.0 + np.arange(len(rows), dtype=np.float64))
    if name not in rows.column_names:
        raise DataError(f"history needs the time column '{name}'; the rows have: {', '.join(rows.column_names)}")
    return every_moment(rows[name], name, passed)
