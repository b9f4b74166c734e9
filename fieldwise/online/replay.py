"""The event log as rows to train on: what was shown and the response, in the order in which histories count them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import sqlalchemy as sql

from fieldwise.data.formats import text_of
from fieldwise.errors import ConfigError, DataError
from fieldwise.online import tables
from fieldwise.online.log import Outcome, read_outcomes

STEP = 5000
# When the response came, in seconds since 1970.
MOMENT = "logged_at"
SEPARATOR = "|"


def tables_of(log: str, label: str) -> Iterator[pa.Table]:
    """Chunks of counted rows as texts: the label, the moment, and every field that any of them has."""
    engine = tables.connect(log, writing=False)
    try:
        names = dict.fromkeys(name for chunk in _chunks(engine) for outcome in chunk for name in outcome.row)
        for taken in (label, MOMENT):
            if taken in names:
                raise ConfigError(
                    f"'{taken}' is a field of the log and cannot be another column; choose another --label"
                )
        if not names:
            raise DataError("the log has no responses yet; POST /event logs them")
        for chunk in _chunks(engine):
            columns: dict[str, Any] = {
                label: pa.array([outcome.label for outcome in chunk], pa.int8()),
                MOMENT: pa.array([outcome.time for outcome in chunk], pa.float64()),
            }
            texts = {name: pa.array([_text(row.row.get(name)) for row in chunk], pa.string()) for name in names}
            yield pa.table(columns | texts)
    finally:
        engine.dispose()


def _chunks(engine: sql.Engine) -> Iterator[list[Outcome]]:
    after = 0
    while chunk := read_outcomes(engine, after, STEP):
        yield chunk
        after = chunk[-1].seq


def _text(value: Any) -> str | None:
    """A value as a file holds it; a set is its members with `|` between them."""
    return SEPARATOR.join(text_of(member) or "" for member in value) if isinstance(value, list) else text_of(value)
