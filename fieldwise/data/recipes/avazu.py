"""Avazu's click-through rate prediction."""

from __future__ import annotations

from datetime import date

from fieldwise.data.read.delimited import Text
from fieldwise.data.recipes.recipe import Derived, Recipe, fields

FIELDS = (
    "C1 banner_pos site_id site_domain site_category app_id app_domain app_category device_id device_ip device_model "
    "device_type device_conn_type C14 C15 C16 C17 C18 C19 C20 C21"
)
COLUMNS = ("id", "click", "hour", *FIELDS.split())


def weekday(stamp: str) -> int | None:
    """The day of the week, 0 for Monday, of a YYMMDD."""
    try:
        return date(2000 + int(stamp[:2]), int(stamp[2:4]), int(stamp[4:6])).weekday()
    except ValueError:
        return None


def two_digits(place: int) -> Derived:
    """The number in two digits of YYMMDDHH: the day at place 4, the hour at place 6."""
    name = {4: "day", 6: "hour_of_day"}[place]
    return Derived(name, "hour", lambda stamp: int(s) if (s := stamp[place : place + 2]).isdecimal() else None)


AVAZU = Recipe(
    name="avazu",
    title="Avazu click-through rate prediction: 10 days of mobile ads, 24 fields",
    link="Kaggle: Click-Through Rate Prediction (avazu-ctr-prediction)",
    terms="the competition's rules: its own use and research",
    files="train.csv or train.gz (commas, a header)",
    label="click",
    layouts=(COLUMNS, COLUMNS[2:]),
    text=Text(","),
    cells={"click": "[01]", "hour": r"\d{8}"},
    fields=fields(FIELDS + " day hour_of_day weekday", min_count=20),
    derived=(two_digits(4), two_digits(6), Derived("weekday", "hour", weekday, cut=6)),
    shares=(0.72, 0.08, 0.2),
    rows={"train": 40_428_967},
    remarks=(
        "hour, YYMMDDHH, becomes day, hour_of_day and weekday; id is no field",
        "the paper's split, four to one at random, with a tenth of the four for validation; in the order of time it is"
        " --split-by hour",
    ),
)
