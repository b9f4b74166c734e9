"""The event log as rows to train on: what was shown and the response, in the order in which histories count them."""

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
# When the response came, in seconds since 1970.
MOMENT = "logged_at"
SEPARATOR = "|"


def tables_of(log: str, label: str, time: str = "") -> Iterator[pa.Table]:
    """Chunks of counted rows as texts: the label, the moment, and every field that any of them has.

    `time` names the time column of a history. It is written as the number that the history counted by: a row that was
    told late has the moment of the one before it.
    """
    engine = event_tables.connect(log, writing=False)
    try:
        names = dict.fromkeys(name for chunk in _chunks(engine) for outcome in chunk for name in outcome.row)
        for taken in (label, MOMENT):
            if taken in names:
                raise ConfigError(
                    f"'{taken}' is a field of the log and cannot be another column; choose another --label"
                )
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
            if time:
                told = [_moment(outcome, time) for outcome in chunk]
                moments = np.maximum.accumulate(np.maximum(told, now))
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
    """A value as a file holds it; a set is its members with `|` between them."""
    return SEPARATOR.join(text_of(member) or "" for member in value) if isinstance(value, list) else text_of(value)
