"""Which columns are times, how they are written, and which of their parts become fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.infer import infer_schema
from fieldwise.data.kinds.kind import Field
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.kinds.time import TimeField, Times, order_of, recognised

ROWS = 2000
RNG = np.random.default_rng(2)
# Forty days of 2017, in no order.
SECONDS = 1_500_000_000 + RNG.integers(0, 40 * 86_400, ROWS)
MOMENTS = [datetime(1970, 1, 1) + timedelta(seconds=int(second)) for second in SECONDS]


def sample(values: Sequence[object]) -> Sample:
    column = values if isinstance(values, pa.Array) else pa.array([None if v is None else str(v) for v in values])
    return Sample(pa.chunked_array([column]), np.zeros(len(values), dtype=np.float32))


def found(values: Sequence[object], name: str = "x") -> Times | None:
    return recognised(name, sample(values))


WRITTEN = {
    "seconds": SECONDS,
    "milliseconds": SECONDS * 1000 + 7,
    "microseconds": SECONDS * 1_000_000,
    "nanoseconds": SECONDS * 1_000_000_000,
    "YYMMDDHH": [f"{moment:%y%m%d%H}" for moment in MOMENTS],
    "YYYYMMDD": [f"{moment:%Y%m%d}" for moment in MOMENTS],
    "YYYYMMDDHH": [f"{moment:%Y%m%d%H}" for moment in MOMENTS],
    "YYYYMMDDHHMM": [f"{moment:%Y%m%d%H%M}" for moment in MOMENTS],
    "YYYYMMDDHHMMSS": [f"{moment:%Y%m%d%H%M%S}" for moment in MOMENTS],
    "YYYYMMDDHHMMSSmmm": [f"{moment:%Y%m%d%H%M%S}008" for moment in MOMENTS],
}


@pytest.mark.parametrize("written", WRITTEN)
def test_numbers_and_digits(written: str) -> None:
    times = found(WRITTEN[written])
    assert times is not None
    assert times.format == written
    parts = ("weekday",) if written == "YYYYMMDD" else ("hour", "weekday")
    assert times.parts == parts
    # As a typed column, and with a name, where some rows have none.
    assert found(pa.array(np.array(WRITTEN[written], dtype=np.int64))) == times
    gaps = found([None if row % 4 == 0 else value for row, value in enumerate(WRITTEN[written])], "created_at")
    assert gaps is not None
    assert (gaps.format, gaps.complete) == (written, 0.75)


@pytest.mark.parametrize(
    "values",
    [
        [f"{moment:%Y-%m-%d}" for moment in MOMENTS],
        [f"{moment:%Y/%m/%d %H:%M}" for moment in MOMENTS],
        [f"{moment:%Y-%m-%dT%H:%M:%S}Z" for moment in MOMENTS],
        [f"{moment:%Y-%m-%d %H:%M:%S}.250 UTC" for moment in MOMENTS],
        pa.array(MOMENTS, pa.timestamp("us")),
        pa.array(MOMENTS, pa.timestamp("ms", "Europe/Berlin")),
        pa.array([moment.date() for moment in MOMENTS], pa.date32()),
    ],
    ids=["dates", "slashes", "zone", "fractions", "timestamp", "zoned", "date32"],
)
def test_dates_and_times(values: Sequence[object]) -> None:
    times = found(values)
    assert times is not None
    assert (times.format, times.complete) == ("text", 1.0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        # Ids of ten digits: spread beyond what a log lasts, counted, or the same few again.
        ("ad", RNG.integers(10**9, 2 * 10**9, ROWS)),
        ("ad", RNG.permutation(1_000_000_000 + np.arange(ROWS))),
        ("row", 1_000_000_000 + np.arange(ROWS)),
        ("time", 1_000_000_000 + np.arange(ROWS)),
        ("ad", 1_500_000_000 + 977 * RNG.integers(0, 50, ROWS)),
        ("ad", 1_500_000_000 + 977 * RNG.integers(0, 300, ROWS)),
        ("user_id", SECONDS),
        ("userId", SECONDS),
        ("amount", SECONDS),
        # Numbers and texts that are no moments.
        ("x", RNG.integers(0, 10**6, ROWS)),
        ("x", RNG.integers(10_000_000, 99_999_999, ROWS)),
        ("x", SECONDS + 0.5),
        ("hour", RNG.integers(0, 24, ROWS)),
        ("birth_date", [f"{1940 + row % 50}-01-0{1 + row % 9}" for row in range(ROWS)]),
        ("x", ["13:05:00", "14:00:00", "15:10:00"] * 20),
        ("x", ["2014-10", "2014-11", "2014-12"] * 20),
        ("x", [f"2014-10-21 {word}" for word in "abc"] * 20),
    ],
)
def test_what_is_no_time(name: str, values: Sequence[object]) -> None:
    assert found(values, name) is None


def test_a_name_helps_where_values_say_little() -> None:
    """Times that come again and again, or of many years, are no less times."""
    coarse = SECONDS // 86_400 * 86_400
    assert found(coarse, "x") is None
    assert found(coarse, "event_time") is not None
    assert found(np.arange(ROWS) * 500_000 + 800_000_000, "timestamp") is not None
    # A log in its order, and some words for no time.
    assert found(np.sort(coarse), "x") is not None
    assert found([0, 0, *SECONDS], "timestamp") is not None


def test_parts_that_do_not_come_again_are_no_fields() -> None:
    start = 1_500_000_000
    for step, parts in ((30, ()), (90, ("hour",)), (400, ("hour", "weekday"))):
        times = found(start + np.arange(ROWS) * step, "time")
        assert times is not None
        assert times.parts == parts
    # The first rows of a long log may be of one day; the last ones say more.
    column = pa.chunked_array([pa.array(start + np.arange(ROWS) * 30)])
    late = pa.chunked_array([pa.array(start + 30 * 86_400 + np.arange(100) * 3000)])
    times = recognised("time", Sample(column, np.zeros(ROWS, dtype=np.float32), late))
    assert times is not None
    assert times.parts == ("hour", "weekday")


def test_the_first_rows_may_be_of_one_hour() -> None:
    """As those of a log with many rows in each hour."""
    column, late = (pa.chunked_array([pa.array([stamp] * ROWS)]) for stamp in ("14102100", "14103023"))
    assert recognised("hour", Sample(column, np.zeros(ROWS, dtype=np.float32))) is None
    times = recognised("hour", Sample(column, np.zeros(ROWS, dtype=np.float32), late))
    assert times is not None
    assert (times.format, times.rises, times.parts) == ("YYMMDDHH", True, ("hour", "weekday"))


def test_the_time_that_orders_the_rows() -> None:
    order = np.sort(SECONDS)
    mostly = [None if row % 3 == 0 else value for row, value in enumerate(SECONDS)]
    columns = {"signup": mostly, "seen": order, "born": SECONDS, "user": ["a"] * ROWS}
    best = order_of([(name, sample(values)) for name, values in columns.items()])
    assert best is not None
    assert (best.column, best.rises) == ("seen", True)
    rest = order_of([(name, sample(columns[name])) for name in ("signup", "born", "user")])
    assert rest is not None
    assert rest.column == "born"
    assert order_of([("user", sample(["a"] * ROWS))]) is None


def test_ids_are_hours_and_weekdays() -> None:
    hour, weekday = (Field("t", "time", part=part, format="seconds").fit(None) for part in ("hour", "weekday"))  # type: ignore[arg-type]
    texts = ["1413896400", "1413896400.5", None, "soon", "1e300", "-1"]
    assert hour.ids(texts).tolist() == [15, 15, 0, 0, 0, 25]
    assert weekday.ids(texts).tolist() == [3, 3, 0, 0, 0, 4]
    assert (hour.value_of(15), weekday.value_of(3)) == ("13:00", "Tuesday")
    # Where it was written, it was one o'clock.
    text = Field("t", "time").fit(None)  # type: ignore[arg-type]
    assert text.ids(["2014-10-21T13:00:00+02:00", "2014-10-21", "21.10.2014"]).tolist() == [15, 2, 0]


def test_the_fields_of_a_column() -> None:
    table = pa.table({"ts": SECONDS, "user": [f"u{row % 9}" for row in range(ROWS)]})
    schema, notes = infer_schema(table, np.zeros(ROWS, dtype=np.float32), "click")
    assert schema.names == ["ts:hour", "ts:weekday", "user"]
    assert schema.columns == ["ts", "user"]
    assert schema.optional == {"ts"}
    assert notes == ["column 'ts' is a time: its fields are ts:hour and ts:weekday"]
    assert schema.without(["ts"]).names == ["user"]
    short = table.set_column(0, "ts", pa.array(1_500_000_000 + 3 * np.arange(ROWS)))
    schema, notes = infer_schema(short, np.zeros(ROWS, dtype=np.float32), "click")
    assert schema.names == ["user"]
    assert notes == ["column 'ts' is a time: none of its parts comes again, so it is no field"]


def test_settings_are_checked() -> None:
    assert isinstance(Field("t", "time", part="weekday"), TimeField)
    with pytest.raises(ConfigError, match="field 't': unknown part 'month'; available: hour, weekday"):
        Field("t", "time", part="month")
    with pytest.raises(ConfigError, match="field 't': unknown format 'second'; did you mean 'seconds'"):
        Field("t", "time", format="second")
    with pytest.raises(ConfigError, match="interpolate needs a number in ordered buckets, found an hour or a weekday"):
        Field("t", "time", interpolate=3)
