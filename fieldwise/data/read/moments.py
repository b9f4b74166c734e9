"""Texts and numbers that say when -> seconds since 1970, and the hours and weekdays of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HOUR, DAY = 3600, 86_400
# How numbers count since 1970, and digits that spell a moment: their places of year, month, day, hour, minute, second.
UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
STAMPS = ("YYYYMMDD", "YYMMDDHH", "YYYYMMDDHH", "YYYYMMDDHHMM", "YYYYMMDDHHMMSS", "YYYYMMDDHHMMSSmmm")
TEXT = "text"
FORMATS = (TEXT, *UNITS, *STAMPS)
# Seconds since 1970 beyond which a number is no moment.
FARTHEST = 10_000_000_000


def seconds(texts: Sequence[str | None], written: str, wall: bool = False) -> Floats:
    """Seconds since 1970 of texts, NaN for what is no time; with `wall` those of the clock where it was written.

    >>> seconds(["14102113", None, "x"], "YYMMDDHH").tolist()
    [1413896400.0, nan, nan]
    >>> seconds(["2014-10-21T13:00:00+02:00"], "text").tolist(), seconds(["1413896400000"], "milliseconds").tolist()
    ([1413889200.0], [1413896400.0])
    """
    if unit := UNITS.get(written):
        return plausible(np.array([_number(text) for text in texts], dtype=np.float64) / unit)
    read = _reader(written)
    found = [read(text.strip()) if text else None for text in texts]
    if wall:
        found = [one.replace(tzinfo=None) if one else None for one in found]
    return np.array([_seconds(one) if one else np.nan for one in found], dtype=np.float64)


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(text: str | None) -> float:
    try:
        return float(text) if text and "_" not in text else np.nan
    except ValueError:
        return np.nan


def plausible(moments: Floats) -> Floats:
    """Moments that a calendar has; others are none."""
    return np.where(np.abs(moments) < FARTHEST, moments, np.nan)


def _reader(written: str) -> Callable[[str], datetime | None]:
    return moment_of if written == TEXT else lambda text: _stamped(text, written)


def moment_of(text: str) -> datetime | None:
    """The moment of a date, or of a date and a time, as ISO 8601 has them, also with slashes, or UTC behind it.

    >>> moment_of("2014/10/21 13:05"), moment_of("2014-10-21 13:00:00 UTC").hour, moment_of("Tuesday")
    (datetime.datetime(2014, 10, 21, 13, 5), 13, None)
    """
    # At least a year, a month and a day with marks between: digits alone are numbers.
    if len(text) < 8 or not text[:4].isdecimal() or text[4] not in "-/":
        return None
    try:
        return datetime.fromisoformat(text.replace("/", "-").removesuffix(" UTC"))
    except ValueError:
        return None


def _stamped(text: str, stamp: str) -> datetime | None:
    if len(text) != len(stamp) or not (text.isascii() and text.isdecimal()):
        return None
    years = stamp.count("Y")
    numbers = [int(text[:years]) + (2000 if years == 2 else 0)]
    numbers += [int(text[place : place + 2]) for place in range(years, min(len(stamp), years + 10), 2)]
    try:
        return datetime(*numbers)  # type: ignore[arg-type]
    except ValueError:
        return None


def words_of(written: str) -> str:
    """How times are written, for people."""
    if written == TEXT:
        return "written as a date"
    return f"in {written} since 1970" if written in UNITS else f"written {written}"


def day_of(moment: float) -> str:
    """The day of a moment, for people."""
    return (datetime(1970, 1, 1) + timedelta(seconds=moment)).date().isoformat()


def parts_of(moments: Floats) -> dict[str, NDArray[np.int64]]:
    """The hours of the day and the weekdays, 0 for Monday, of seconds since 1970."""
    days = np.floor(moments / DAY)
    hours = np.floor((moments - days * DAY) / HOUR)
    # 1970 began on a Thursday.
    return {"hour": hours.astype(np.int64), "weekday": (days.astype(np.int64) + 3) % 7}
