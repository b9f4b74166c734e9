"""The event log as training rows: what was shown and the response to it, in the order that histories count them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sql

from fieldwise.abtest import event_tables
from fieldwise.abtest.event_log import Outcome, read_outcomes
from fieldwise.config.errors import ConfigError, DataError, unknown
from fieldwise.data.history.history import moment
from fieldwise.data.read.formats import text_of

STEP = 5000
# The time of the response, in seconds since 1970.
MOMENT = "logged_at"
SEPARATOR = "|"


def tables_of(log: str, label: str, time: str = "", position: str = "") -> Iterator[pa.Table]:
    """Chunks of the counted rows as texts: label, time of the response, and every field that any row has.

    `time` names the time column of a history. It is written as the number the history counted by: a row whose response
    came late has the time of the row before it. `position` names the column of where a row was shown: what the row
    says of it, or else its place in the ranking.
    """
    engine = event_tables.connect(log, writing=False)
    try:
        names = dict.fromkeys(name for chunk in _chunks(engine) for outcome in chunk for name in outcome.row)
        if position in (label, MOMENT):
            raise ConfigError(f"--position names a column of its own, found '{position}'")
        for taken in (label, MOMENT):
            if taken in names:
                raise ConfigError(f"the log has a field named '{taken}' already; choose another --label")
        if not names:
            raise DataError("the log has no responses yet; POST /event logs them")
        if time and time not in names:
            raise ConfigError(unknown("column", time, names))
        now = -math.inf
        for chunk in _chunks(engine):
            columns: dict[str, Any] = {
                label: pa.array([outcome.label for outcome in chunk], pa.int8()),
                MOMENT: pa.array([outcome.time for outcome in chunk], pa.float64()),
            }
            texts = {name: pa.array([_text(row.row.get(name)) for row in chunk], pa.string()) for name in names}
            if position:
                places = [outcome.row.get(position, outcome.rank) for outcome in chunk]
                texts[position] = pa.array([_text(place) for place in places], pa.string())
            if time:
                given = [_moment(outcome, time) for outcome in chunk]
                moments = np.maximum.accumulate(np.maximum(given, now))
                now = moments[-1]
                texts[time] = pa.array([repr(float(number)) for number in moments], pa.string())
            yield pa.table(columns | texts)
    finally:
        engine.dispose()


def _moment(outcome: Outcome, time: str) -> float:
    found = moment(outcome.row.get(time), time)
    if found is None:
        raise DataError(f"every row must have the time '{time}', found none (request {outcome.request_id})")
    return found


def _chunks(engine: sql.Engine) -> Iterator[list[Outcome]]:
    after = 0
    while chunk := read_outcomes(engine, after, STEP):
        yield chunk
        after = chunk[-1].seq


def _text(value: Any) -> str | None:
    """A value as text in a file; the members of a set are joined with `|`."""
    return SEPARATOR.join(text_of(member) or "" for member in value) if isinstance(value, list) else text_of(value)
