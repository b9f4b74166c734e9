"""Times: what of a moment comes again, the hour of the day and the day of the week; and which columns are times.

A moment itself never comes again, so that ids of it say nothing about later rows. Its column orders the rows instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.kinds.counted import Counted, Query
from fieldwise.data.kinds.kind import BY_CELL, FIRST, MISSING, Code, Field, Ids
from fieldwise.data.kinds.samples import NO_NUMBER, Sample
from fieldwise.data.read.formats import is_list
from fieldwise.data.read.moments import (
    DAY,
    FORMATS,
    STAMPS,
    TEXT,
    UNITS,
    Floats,
    parts_of,
    plausible,
    seconds,
    words_of,
)
from fieldwise.data.read.texts import texts_of

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SIZES = {"hour": 24, "weekday": 7}
# The moments that a column of times may hold, and how far apart they are in a log that names them otherwise.
EARLIEST, LATEST = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1995, 2035))
LONGEST = 20 * 365.25 * DAY
# The share of a column's values that must be such moments: some programs write 0, or "never".
MOST = 0.95
# Different values below which dates are as well off as categories, and numbers in the range of moments may be anything.
FEW_NAMED, FEW_STAMPS, FEW_MOMENTS = 2, 3, 20
# A log in the order of time rises nearly everywhere. Ids come again and again, or number the rows without a gap; the
# times of a log that names them otherwise differ in this share of rows, and leave gaps.
RISING, VARIED, DENSE, NUMBERED = 0.99, 0.3, 0.5, 0.95
TIME_NAMES = re.compile(r"time|date|stamp|hour|day|when|moment|epoch|clock|created|updated|_at$|^ts|_ts$|^t$|^dt", re.I)
ID_NAMES = re.compile(
    r"(^|[^a-z])(id|ids|uid|key|code|hash|zip|phone|isbn|ean|sku|account|number|num|nr|no|index|idx|price|amount|cost|"
    r"count)($|[^a-z])",
    re.I,
)


@dataclass(frozen=True, init=False)
class TimeField(Field):
    """A `part` of the time in column `of`: the hour of the day, or the weekday.

    `format` says how it is written: `text` (ISO 8601), seconds, milliseconds, microseconds or nanoseconds since 1970,
    or digits such as YYMMDDHH. Without `of` the column has the field's name.
    """

    kind: ClassVar = "time"
    history_key: ClassVar = BY_CELL
    asked_first: ClassVar = True
    may_be_absent: ClassVar = True
    is_time: ClassVar = True
    of: str = ""
    part: str = "hour"
    format: str = TEXT

    def check(self) -> None:
        for setting, known in (("part", SIZES), ("format", FORMATS)):
            if getattr(self, setting) not in known:
                raise ConfigError(f"field '{self.name}': " + unknown(setting, getattr(self, setting), known))
        super().check()

    @property
    def column(self) -> str:
        return self.of or self.name

    @property
    def unordered(self) -> str:
        return "an hour or a weekday, which begins again"

    @property
    def why_always_known(self) -> str:
        return "hours and weekdays are known beforehand"

    @classmethod
    def infer_all(cls, name: str, sample: Sample) -> Sequence[Field] | None:
        found = recognised(name, sample)
        if found is None:
            return None
        return [cls(f"{name}:{part}", of=name, part=part, format=found.format) for part in found.parts]

    def query(self, column: str, is_list: bool) -> Query:
        return Query(column, counted=False)

    def fit(self, column: Counted) -> Code:
        return TimeCode(self)

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        return TimeCode(self)


@dataclass
class TimeCode(Code):
    """An id for each hour, or each day of the week; what is no time is missing."""

    field: TimeField

    @property
    def size(self) -> int:
        return FIRST + SIZES[self.field.part]

    def ids(self, texts: Sequence[str | None]) -> Ids:
        return self._of(seconds(texts, self.field.format, wall=True))

    def column_ids(self, column: pa.ChunkedArray) -> Ids:
        unit = UNITS.get(self.field.format)
        if unit is None or not pa.types.is_integer(column.type):
            return super().column_ids(column)
        values = pc.cast(column.combine_chunks(), pa.float64(), safe=False)
        return self._of(plausible(np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64) / unit))

    def _of(self, moments: Floats) -> Ids:
        missing = np.isnan(moments)
        parts = parts_of(np.where(missing, 0.0, moments))[self.field.part]
        return np.where(missing, MISSING, FIRST + parts).astype(np.int32)

    def text_of_id(self, number: int) -> str:
        place = number - FIRST
        return WEEKDAYS[place] if self.field.part == "weekday" else f"{place:02d}:00"

    @property
    def hint(self) -> str:
        return (
            "a time such as 2014-10-21 13:00:00"
            if self.field.format == TEXT
            else f"a time, {words_of(self.field.format)}"
        )


@dataclass(frozen=True)
class Times:
    """A column of times: how it is written, the share of rows that have one, whether it rises from row to row, how many
    differ, and its parts that come again."""

    column: str
    format: str
    complete: float
    rises: bool
    different: int
    parts: tuple[str, ...]


def order_of(columns: Iterable[tuple[str, Sample]]) -> Times | None:
    """Of all columns that are times the one that orders the rows: it rises with them, or is there in most of them."""
    found = [times for name, sample in columns if (times := recognised(name, sample))]
    return max(found, key=lambda times: (times.rises, times.complete, times.different), default=None)


def promising(column: pa.ChunkedArray) -> bool:
    """Whether any of some cells says when, however they are written: a fast look at columns that may be times."""
    known = [] if is_list(column.type) else [text for text in texts_of(column)[0] if text]
    return bool(known) and any(_share(known, written) for written in FORMATS)


def recognised(name: str, sample: Sample) -> Times | None:
    """What a column's values say of it if they are times; None where they are not.

    The last rows count as well as the first: all first rows of a long log may be of one hour.
    """
    if sample.is_list:
        return None
    ends = ((sample.texts, sample.places), sample.later)
    every = dict.fromkeys(text for texts, _ in ends for text in texts if text and text not in NO_NUMBER)
    written = _format(name, list(every), sample)
    if not written:
        return None
    first, last = (seconds(texts, written)[places] for texts, places in ends)
    rows = np.concatenate([first, last])
    rows = rows[_in_range(rows)]
    walls = seconds(list(every), written, wall=True)
    complete = float(_in_range(first).mean())
    return Times(name, written, complete, _rising(rows), len(np.unique(rows)), _parts(walls[_in_range(walls)]))


def _format(name: str, known: Sequence[str], sample: Sample) -> str:
    """How a column's texts spell times; nothing where they do not."""
    if len(known) < (FEW_NAMED if TIME_NAMES.search(name) else FEW_STAMPS):
        return ""
    if _share(known[:FEW_MOMENTS], TEXT) and _share(known, TEXT) >= MOST:
        return TEXT
    if ID_NAMES.search(name) or re.search("[a-z](Id|ID)$", name):
        return ""
    for stamp in STAMPS:
        if _share(known[:FEW_MOMENTS], stamp) and _share(known, stamp) >= MOST:
            return stamp
    if sample.numbers is None:
        return ""
    able = [unit for unit in UNITS if _share(known[:FEW_MOMENTS], unit) and _share(known, unit) >= MOST]
    return next((unit for unit in able if _are_moments(name, unit, known, sample)), "")


def _are_moments(name: str, unit: str, known: Sequence[str], sample: Sample) -> bool:
    """Whether numbers in the range of moments are times, and not ids or amounts."""
    moments = seconds(known, unit)
    moments = moments[_in_range(moments)]
    span = float(np.ptp(moments))
    density = len(moments) / (span * UNITS[unit] + 1)
    if TIME_NAMES.search(name):
        return not (sample.differs and density > NUMBERED)
    if len(moments) < FEW_MOMENTS:
        return False
    whole = all(text.isdecimal() for text in known)
    rows = seconds(sample.texts, unit)[sample.places]
    varied = len(moments) >= VARIED * len(rows) or _rising(rows[_in_range(rows)])
    return whole and varied and density < DENSE and span < LONGEST


def _share(texts: Sequence[str], written: str) -> float:
    """The share of texts that are plausible moments."""
    return float(_in_range(seconds(texts, written)).mean())


def _in_range(moments: Floats) -> NDArray[np.bool_]:
    return (moments >= EARLIEST) & (moments < LATEST)


def _rising(rows: Floats) -> bool:
    return bool(len(rows) > 1 and rows[-1] > rows[0] and (np.diff(rows) >= 0).mean() >= RISING)


def _parts(moments: Floats) -> tuple[str, ...]:
    """The parts that vary, and come again: hours in more than a day, weekdays in more than a week.

    In a shorter time later rows have parts that earlier ones never had.
    """
    least = {"hour": DAY, "weekday": 7 * DAY}
    found = parts_of(moments)
    return tuple(part for part, own in found.items() if np.ptp(moments) >= least[part] and np.ptp(own) > 0)
