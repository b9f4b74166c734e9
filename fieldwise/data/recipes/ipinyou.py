"""iPinYou's real-time bidding contest: seasons 2 and 3, impressions joined with their clicks."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.data.read import delimited
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.delimited import Text
from fieldwise.data.recipes.recipe import Derived, Join, Recipe, fields
from fieldwise.data.schema import Field

COLUMNS = (
    "bidid timestamp logtype ipinyouid user_agent IP region city adexchange domain url urlid slotid slotwidth "
    "slotheight slotvisibility slotformat slotprice creative bidprice payprice keypage advertiser usertag"
)
IMPRESSION = tuple(COLUMNS.split())
# User agents and urls hold whatever browsers sent; no field does.
TEXT = Text("\t", bare=True, encoding="latin-1")
# Looked for in this order: an Android's agent says linux too, Chrome's says safari.
SYSTEMS = ["windows", "ios", "mac", "android", "linux"]
BROWSERS = ["chrome", "sogou", "maxthon", "safari", "firefox", "theworld", "opera", "ie"]


def os_browser(agent: str) -> str:
    """The operating system and the browser that a user agent names first in our order.

    >>> os_browser("Mozilla/5.0 (Windows NT 6.1) Chrome/27.0 Safari/537.36")
    'windows_chrome'
    """
    agent = agent.lower()
    system, browser = (next((w for w in words if w in agent), "other") for words in (SYSTEMS, BROWSERS))
    return f"{system}_{browser}"


def weekday(stamp: str) -> int | None:
    """The day of the week, 0 for Sunday, of a YYYYMMDD."""
    try:
        return (date(int(stamp[:4]), int(stamp[4:6]), int(stamp[6:8])).weekday() + 1) % 7
    except ValueError:
        return None


def hour(stamp: str) -> int | None:
    """The hour of a YYYYMMDDHH."""
    return int(stamp[8:10]) if stamp[8:10].isdecimal() else None


def with_clicks(path: Path) -> Join | None:
    """Clicks by bid and creative, from the click logs beside the impressions: few, they are held in memory."""
    logs = sorted(path.parent.glob("clk.*")) if path.name.startswith("imp.") else []
    if not logs:
        return None
    keys = [pa.array([], pa.string())]
    text = replace(TEXT, names=IMPRESSION)
    for log in logs:
        for chunk in delimited.read(log, text, IMPRESSION, ["bidid", "creative"], BadRows()):
            keys.append(_key(chunk))
    clicked = pa.concat_arrays(keys)

    def join(rows: pa.Table) -> pa.Table:
        return rows.append_column("click", pc.is_in(_key(rows), clicked).cast(pa.int8()))

    return join


def _key(rows: pa.Table) -> pa.Array:
    """Bid and creative in one text; null where there is no bid, which matches nothing."""
    bid, creative = (rows[name].combine_chunks() for name in ("bidid", "creative"))
    return pc.binary_join_element_wise(bid, pc.fill_null(creative, ""), " ")


IPINYOU = Recipe(
    name="ipinyou",
    title="iPinYou real-time bidding, seasons 2 and 3: 16 fields, 0.075 % positive",
    link="iPinYou Global RTB Bidding Algorithm Competition: ipinyou.contest.dataset",
    terms="the contest's: research",
    files="the folder, or imp.* (clicks are in clk.* beside them) and leaderboard.test.data.*, plain, .gz or .bz2",
    label="click",
    layouts=(IMPRESSION, (*IMPRESSION, "nclick", "nconversion")),
    text=TEXT,
    header=False,
    cells={"timestamp": r"\d{17}", "slotwidth": r"\d*", "slotprice": r"-?\d*"},
    fields=(
        *fields("weekday hour IP region city adexchange domain slotid slotwidth slotheight", min_count=1),
        *fields("slotvisibility slotformat creative advertiser useragent", min_count=1),
        Field("slotprice", "numeric", buckets="explicit", thresholds=(0.0, 10.0, 50.0, 100.0)),
    ),
    derived=(
        Derived("weekday", "timestamp", weekday, cut=8),
        Derived("hour", "timestamp", hour, cut=10),
        Derived("useragent", "user_agent", os_browser, text=True),
        Derived("click", "nclick", lambda count: int(count != "0")),
    ),
    join=with_clicks,
    joined=("bidid", "creative"),
    parts={"train": r"imp\..*", "test": r"leaderboard\.test\.data.*"},
    aside=r"(clk|conv|bid)\..*",
    shares=(0.9, 0.1, 0.0),
    rows={"train": 15_395_258, "test": 4_100_716},
    remarks=(
        "a click belongs to the impression of the same bid and creative; test rows have their count of clicks",
        "prices in five buckets: 0, to 10, to 50, to 100, above; user tags are left out, because they leak",
    ),
)
