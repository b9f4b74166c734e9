"""Sets whose files need no more than names: Frappe, Amazon's access requests, an app store's log, sparse files."""

from __future__ import annotations

from fieldwise.data.recipes.recipe import Recipe, fields
from fieldwise.data.schema import Field

FRAPPE_FIELDS = "user item daytime weekday isweekend homework cost weather country city"
AMAZON_FIELDS = (
    "RESOURCE MGR_ID ROLE_ROLLUP_1 ROLE_ROLLUP_2 ROLE_DEPTNAME ROLE_TITLE ROLE_FAMILY_DESC ROLE_FAMILY ROLE_CODE"
)
APPSTORE_FIELDS = "user app category position hour device city last_category"

FRAPPE = Recipe(
    name="frappe",
    title="Frappe: use of mobile apps in context, 10 fields, split as published",
    link="BARS benchmark: Frappe_x1 (train.csv, valid.csv, test.csv)",
    terms="research, cite Baltrunas et al. 2015",
    files="train.csv, valid.csv and test.csv, or their folder (commas, a header)",
    layouts=(("label", *FRAPPE_FIELDS.split()), tuple(FRAPPE_FIELDS.split())),
    cells={"label": "[01](.0)?"},
    fields=fields(FRAPPE_FIELDS),
    parts={part: rf"(.*\W)?{part}\.csv(\.gz)?" for part in ("train", "valid", "test")},
    rows={"train": 202_027, "valid": 57_722, "test": 28_860},
    remarks=(
        "the published split gives labels away: docs/data.md, leaks across the split; --split 0.7,0.2,0.1 --split-group"
        " user,daytime,weekday,isweekend,homework,cost,weather,country,city splits anew",
    ),
)

AMAZON = Recipe(
    name="amazon",
    title="Amazon employee access: which requests are granted, 9 fields, 94 % positive",
    link="Kaggle: Amazon.com Employee Access Challenge (amazon-employee-access-challenge)",
    terms="the competition's rules: its own use and research",
    files="train.csv (commas, a header)",
    label="ACTION",
    layouts=(("ACTION", *AMAZON_FIELDS.split()), tuple(AMAZON_FIELDS.split())),
    cells={"ACTION": "[01]", "RESOURCE": r"\d+"},
    fields=fields(AMAZON_FIELDS),
    rows={"train": 32_769},
)

APPSTORE = Recipe(
    name="appstore",
    title="An app store's log in the shape of the paper's Huawei set, which is not public: 9 fields, tags as a set",
    link="none: write yours in this shape, or fieldwise simulate --kind appstore",
    terms="your own",
    files="a .csv with a header, such as log.csv",
    label="click",
    layouts=(("click", *APPSTORE_FIELDS.split(), "tags"), (*APPSTORE_FIELDS.split(), "tags")),
    cells={"click": "[01]"},
    fields=(*fields(APPSTORE_FIELDS), Field("tags", "set")),
)

SPARSE_LINK = "LIBSVM Data: classification, and other programs that write these formats"
LIBSVM = Recipe(
    name="libsvm",
    title="libsvm lines, `label id:1 id:1 ...`: a category for each field, in the fields' order (KDD-style)",
    link=SPARSE_LINK,
    terms="those of the data",
    files="files of any name",
    kind="libsvm",
)
LIBFFM = Recipe(
    name="libffm",
    title="libffm lines, `label field:feature:value ...`: categories, sets and numbers (KDD-style)",
    link=SPARSE_LINK,
    terms="those of the data",
    files="files of any name",
    kind="libffm",
)
