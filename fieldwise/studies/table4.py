"""Table 4: how many rows, categories and fields the data sets have, and how many of their rows are positive.

Counted on our look-alikes. Fields follow the paper's, but Avazu's hour is one field here and three in the paper. There
are fewer categories than in the paper because there are fewer rows.
"""

from __future__ import annotations

from fieldwise.data.world import World
from fieldwise.data.world.prepared import values_shown
from fieldwise.reporting.result_tables import Column
from fieldwise.studies import figures, lookalikes
from fieldwise.studies.study import Results, Row, Setup, Study, Verdict

# Fields, million rows, million categories and share of positives in the paper.
PAPER = {
    "criteo": (39, 100.0, 1.0, 0.5),
    "avazu": (22, 40.0, 0.6, 0.17),
    "ipinyou": (16, 19.5, 0.9, 0.0007),
    "appstore": (9, 57.0, 0.09, 0.008),
}


def compute(setup: Setup) -> list[Row]:
    rows = []
    for data in lookalikes.SETS:
        world = World(data, 0, lookalikes.RATES[setup.size].get(data))
        span = world.span(lookalikes.ROWS[setup.size][data])
        shown, positives = values_shown(world, span)
        facts: Row = {
            "data": data,
            "fields": len(world.field_names),
            "rows": span.rows,
            "categories": sum(shown.values()),
        }
        facts |= {"positive": positives / span.rows, "asked": world.base_rate}
        rows.append(
            facts | dict(zip(("paper_fields", "paper_rows", "paper_n", "paper_rate"), PAPER[data], strict=True))
        )
    return rows


def claims(results: Results) -> list[Verdict]:
    fields = max(abs(row["fields"] - row["paper_fields"]) for row in results.rows)
    rates = max(abs(row["positive"] / row["asked"] - 1) for row in results.rows)
    sparse = min(row["categories"] / row["fields"] for row in results.rows)
    return [
        Verdict("every look-alike has the fields of its paper's set", -float(fields), strict=False),
        Verdict("the share of positives is the one asked for, to 15 %", 0.15 - rates),
        Verdict("a field has more than 100 categories in the mean, on every set", sparse - 100),
    ]


STUDY = Study(
    id="table4",
    paper="Table 4",
    asks="How large are the data sets, and how rare are positives?",
    says="Criteo 10^8 rows, 39 fields; Avazu 4 10^7, 24; iPinYou 2 10^7, 16; Huawei 5.7 10^7, 9.",
    keys=("data",),
    columns=(
        Column("rows", "Rows", ",.0f"),
        Column("paper_rows", "Paper, million", ",.1f"),
        Column("categories", "Categories", ",.0f"),
        Column("paper_n", "Paper, million", ".2f"),
        Column("fields", "Fields", ".0f"),
        Column("positive", "Positive", ".4f"),
        Column("paper_rate", "Paper", ".4f"),
    ),
    compute=compute,
    claims=claims,
    draw=figures.panels("{data}", "", "", "{column}", {name: name for name in ("rows", "categories", "positive")}),
    budget=0.3,
)
