"""Criteo: the Display Advertising Challenge, its winners' 69 fields, and the 1TB click logs."""

from __future__ import annotations

from fieldwise.data.read.delimited import Text
from fieldwise.data.recipes.recipe import Recipe, fields

INTEGERS = " ".join(f"I{number}" for number in range(1, 14))
CATEGORIES = " ".join(f"C{number}" for number in range(1, 27))
COLUMNS = ("label", *INTEGERS.split(), *CATEGORIES.split())
CELLS = {"label": "[01]", "I1": r"-?\d*", "I13": r"-?\d*", "C1": "[0-9a-f]*", "C26": "[0-9a-f]*"}
TEXT = Text("\t", bare=True)
# Days 6 to 13 of the 1TB logs, the ones that the paper takes.
DAYS = {
    "day_6": 204_846_845,
    "day_7": 200_801_003,
    "day_8": 193_772_492,
    "day_9": 198_424_372,
    "day_10": 185_778_055,
    "day_11": 153_588_700,
    "day_12": 169_003_364,
    "day_13": 194_216_520,
}

CRITEO = Recipe(
    name="criteo",
    title="Criteo Display Advertising Challenge: 7 days of ads, 13 integers and 26 hashed categories",
    link="Criteo AI Lab: Kaggle Display Advertising Challenge dataset",
    terms="Criteo's data terms of use: research, no redistribution",
    files="train.txt (tabs, no header)",
    layouts=(COLUMNS, COLUMNS[1:]),
    text=TEXT,
    header=False,
    cells=CELLS,
    fields=fields(INTEGERS, kind="numeric", buckets="count", bucket_count=20) + fields(CATEGORIES, min_count=20),
    by="row",
    rows={"train": 45_840_617},
    remarks=(
        "the paper's rules: integers in buckets of more than 20 rows, categories of fewer than 20 rows together",
        "rows are in the order of time, so the last ones are held out",
    ),
)

CHALLENGE = Recipe(
    name="criteo-challenge",
    title="The same files as the 69 fields of the challenge's winners, which the paper takes over",
    link=CRITEO.link,
    terms=CRITEO.terms,
    files=CRITEO.files,
    layouts=CRITEO.layouts,
    text=TEXT,
    header=False,
    cells=CELLS,
    fields=fields(INTEGERS, kind="numeric", buckets="log-square", min_count=1)
    + fields(CATEGORIES, min_count=10, shared_ids=1_000_000),
    by="row",
    gbdt_leaves=30,
    rows=CRITEO.rows,
    remarks=(
        "floor(ln(v)^2) of integers above 2; categories of 10 rows or more, hashed to 1,000,000 ids",
        "30 trees of depth 7 are boosted by XGBoost on all fields; the winners' own saw the integers and 26 indicators",
    ),
)

TERABYTE = Recipe(
    name="criteo-1tb",
    title="Criteo 1TB click logs, days 6 to 12 for training and day 13 for testing, half of the rows positive",
    link="Criteo AI Lab: Criteo 1TB Click Logs dataset",
    terms="Criteo's data terms of use: research, no redistribution",
    files="day_6 ... day_13, plain or .gz, or their folder (tabs, no header)",
    layouts=CRITEO.layouts,
    text=TEXT,
    header=False,
    cells=CELLS,
    fields=CRITEO.fields,
    parts={"train": r"day_([6-9]|1[0-2])(\.gz)?", "test": r"day_13(\.gz)?"},
    shares=(0.9, 0.1, 0.0),
    balance=True,
    rows=DAYS,
    remarks=(
        "negatives of each day are kept at the rate of its positives to its negatives, of training and test days alike:"
        " the paper's way, whose log losses are those of balanced rows (86,883,012 and 12,733,031 of them there)",
        "for true probabilities give --keep-negatives: then only training rows are thinned, and predictions corrected",
    ),
)
