"""Guessing what the columns are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.data.encode.infer import infer_schema
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import Field, Schema

ROWS = 4000
RNG = np.random.default_rng(5)
LABELS = (RNG.random(ROWS) < 0.3).astype(np.float32)


def infer(columns: dict[str, Any], labels: Any = LABELS) -> tuple[Schema, list[str]]:
    table = columns if isinstance(columns, pa.Table) else as_table(columns)
    return infer_schema(table, np.asarray(labels[: len(table)], dtype=np.float32), "click")


def field(values: Any, labels: Any = LABELS) -> Field | None:
    """What a column is taken for, or None where it is left out; a second column keeps the schema from being empty."""
    column = values if isinstance(values, pa.Array) else [None if v is None else str(v) for v in values]
    schema, _ = infer(pa.table({"x": column, "constant": ["c"] * len(column)}), labels)
    return schema.fields[0] if schema.names[0] == "x" else None


def kind(values: Any, labels: Any = LABELS) -> str | None:
    found = field(values, labels)
    return found and found.kind


def test_a_mixed_table() -> None:
    columns = {
        "row_id": [str(number) for number in range(ROWS)],
        "click": LABELS.tolist(),
        "user": [f"u{number}" for number in RNG.integers(40, size=ROWS)],
        "price": RNG.random(ROWS).tolist(),
        "tags": ["|".join(RNG.choice(list("abcd"), RNG.integers(4), replace=False)) for _ in range(ROWS)],
        "uuid": [f"{number:032x}" for number in RNG.permutation(ROWS)],
        "hour": RNG.integers(24, size=ROWS).tolist(),
    }
    schema, notes = infer(columns)
    kinds = {found.name: found.kind for found in schema.fields}
    assert kinds == {"user": "categorical", "price": "numeric", "tags": "set", "hour": "categorical"}
    assert schema.label == "click"
    assert notes == [
        "column 'row_id' has another value in every row: left out as an identifier",
        "column 'uuid' has another value in every row: left out as an identifier",
    ]


def test_the_label_and_the_weight_are_no_fields() -> None:
    table = as_table({"click": [0, 1], "w": [1, 2], "x": ["a", "b"]})
    schema, _ = infer_schema(table, np.array([0, 1], dtype=np.float32), "click", "w")
    assert (schema.names, schema.weight) == (["x"], "w")


def test_few_rows_prove_nothing() -> None:
    assert kind([f"u{number}" for number in range(19)]) == "categorical"
    assert kind([f"u{number}" for number in range(20)]) is None


def test_missing_values_do_not_hide_an_identifier() -> None:
    assert kind([f"u{number}" if number % 3 else None for number in range(300)]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None] * 100, "categorical"),
        (["7"] * 100, "categorical"),
        (["true", "false"] * 50, "categorical"),
        (["0.5", "1"] * 50, "numeric"),
        (["1e3", "2.5", "nan", "inf", None] * 50, "numeric"),
        (["nan", "inf", "1"] * 50, "categorical"),
        (["007", "12", "12"] * 50, "categorical"),
        (["-03", "12.5"] * 50, "categorical"),
        (["0", "-1", "0.25"] * 50, "numeric"),
        (["1_000", "12.5"] * 50, "categorical"),
        (["2024-01-02", "2024-01-03"] * 50, "categorical"),
        (["12.5", "unknown"] * 50, "categorical"),
        ([f"{number}.5" for number in range(100)], "numeric"),
    ],
)
def test_kinds(values: list[Any], expected: str) -> None:
    assert kind(values) == expected


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["a|b", "b|c", "c|a", "a", "b|a|c"] * 9, "|"),
        (["a;b", "b;c", "c;a", "a", "b;a;c"] * 9, ";"),
        (["a,b", "b,c", "c,a", "a", "b,a,c"] * 9, ","),
        (["1|2", "2|3", "3|1", "1", "2|1|3"] * 9, "|"),
    ],
)
def test_separators_of_sets(cells: list[str], separator: str) -> None:
    assert field(cells) == Field("x", "set", separator=separator)


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["[1, 2]", "[2, 3]", "[3, 1]", "[1]", "[]", "[2, 1, 3]"] * 9, ","),
        (["['a', 'b']", "['b', 'c']", "['c', 'a']", "['a']", "[]", "['a', 'b', 'c']"] * 9, ","),
        (['["a","b"]', '["b","c"]', '["c","a"]', '["a"]', '["c","b","a"]'] * 9, ","),
        (["{a,b}", "{b,c}", "{c,a}", "{a}", "{a,b,c}"] * 9, ","),
        (["(1, 2)", "(2, 3)", "(3, 1)", "(1,)", "(1, 2, 3)"] * 9, ","),
        (["[1 2]", "[2 3]", "[3 1]", "[1]", "[1 2 3]"] * 9, " "),
        (["a, b", "b, c", "c, a", "a", "b, a, c"] * 9, ","),
        (["a | b", "b | c", "c | a", "a", "b | a | c"] * 9, "|"),
    ],
)
def test_lists_as_programs_print_them_are_sets(cells: list[str], separator: str) -> None:
    assert field(cells) == Field("x", "set", separator=separator, trimmed=True)


def test_brackets_alone_make_no_set() -> None:
    assert kind(["[ad] shoes", "[ad] boots", "hats"] * 30) == "categorical"
    assert kind([f"[{number}]" for number in range(60)] * 2) == "categorical"


def test_a_number_with_a_comma_is_no_set() -> None:
    assert kind([f"{number % 30},5" for number in range(90)]) == "categorical"


def test_a_comma_does_not_make_a_set() -> None:
    titles = [f"word{number}, other{number}" for number in range(100)] * 2
    assert kind(titles) == "categorical"


def test_lists_are_sets() -> None:
    for column in (pa.array([["a"], []] * 9), pa.array([["a", "b"]] * 18, pa.list_(pa.string(), 2))):
        assert kind(column) == "set"


def test_magnitudes_are_numbers() -> None:
    amounts = RNG.integers(0, 100_000, ROWS)
    labels = RNG.random(ROWS) < amounts / 100_000
    assert kind(amounts, labels) == "numeric"
    assert kind([*amounts[:-3], "nan", None, "inf"], labels) == "numeric"
    assert kind(pa.array(amounts), labels) == "numeric"


def test_numbers_of_things_are_categories() -> None:
    """Each id has a rate of its own, and neighbours have nothing in common."""
    ids = RNG.integers(0, 200, ROWS)
    rates = RNG.permutation(np.linspace(0.02, 0.98, 200))
    assert kind(1_000_000 + 7919 * ids, RNG.random(ROWS) < rates[ids]) == "categorical"


def test_codes_with_fractions_are_categories_and_prices_are_numbers() -> None:
    """Half added to a code changes nothing; a number of many values, or one that its order tells of, stays one."""
    codes = RNG.choice(np.arange(100, 9000), 40, replace=False)[np.minimum(RNG.zipf(1.5, 5 * ROWS), 40) - 1]
    rates = RNG.permutation(np.linspace(0.02, 0.98, 9000))
    labels = RNG.random(len(codes)) < rates[codes]
    assert kind(codes, labels) == kind(codes + 0.5, labels) == "categorical"
    prices = np.round(np.exp(RNG.normal(3, 1, ROWS)), 1)
    assert kind(prices, RNG.random(ROWS) < 1 / (1 + prices / 20)) == "numeric"
    amounts = np.where(RNG.random(ROWS) < 0.8, 0, prices)
    assert kind(amounts, RNG.random(ROWS) < 0.1 + 0.5 * (amounts > 20)) == "numeric"


def test_ids_in_the_order_of_their_popularity_are_categories() -> None:
    """The order tells nearly as much as the ids, but neighbours are not alike in their counts."""
    ids = RNG.permutation(100)[np.minimum(RNG.zipf(1.2, 10 * ROWS), 100) - 1]
    assert kind(5000 + ids, RNG.random(len(ids)) < 0.9 - ids / 125) == "categorical"


def test_counts_that_fall_make_a_number_without_evidence() -> None:
    assert kind(RNG.geometric(0.02, ROWS)) == "numeric"


def test_a_question_mark_is_a_missing_number() -> None:
    assert kind(["?" if row % 9 == 0 else f"{RNG.random():.4f}" for row in range(ROWS)]) == "numeric"


def test_without_evidence_whole_numbers_are_categories() -> None:
    assert kind(RNG.integers(0, 1000, ROWS)) == "categorical"


def test_types_of_tables() -> None:
    frame = pa.table({"i": [1, 2] * 50, "f": [0.5, 1.5] * 50, "b": [True, False] * 50, "s": ["a", "b"] * 50})
    schema, _ = infer(frame)
    assert [found.kind for found in schema.fields] == ["categorical", "numeric", "categorical", "categorical"]


def test_many_identifiers_are_one_note() -> None:
    columns = {f"id{number}": [f"{number}-{row}" for row in range(40)] for number in range(12)}
    labels = np.arange(40) % 2
    _, notes = infer_schema(pa.table(columns | {"kind": ["a", "b"] * 20}), labels.astype(np.float32), "click")
    (note,) = notes
    assert note.startswith("12 columns have another value in every row: left out as identifiers, 'id0', 'id1'")
    assert note.endswith("'id9' and 2 more")
