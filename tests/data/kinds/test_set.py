"""Sets: members, widths, separators and lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.kind import MISSING, OTHER, PAD, Field
from fieldwise.data.read.formats import as_table
from tests.data.fitted import fitted


def sets(values: list[Any], folder: Path, **settings: Any) -> Encoder:
    return fitted({"x": values}, folder, Field("x", "set", **{"min_count": 1, **settings}))


def test_members_count_once_and_empty_is_missing(tmp_path: Path) -> None:
    encoder = sets(["a|b|c", "a|b", "a|a", "", None, "|"], tmp_path / "data")
    assert encoder.layout.widths == (3,)
    found = encoder.transform(as_table({"x": ["a|b|a", "", None, "||", "c", "new|a|newer"]}))
    assert found.tolist() == [
        [2, 3, PAD],
        [MISSING, PAD, PAD],
        [MISSING, PAD, PAD],
        [MISSING, PAD, PAD],
        [4, PAD, PAD],
        [OTHER, 2, PAD],
    ]


def test_sets_are_cut_to_their_width(tmp_path: Path) -> None:
    encoder = sets(["a|b|c|d", "a|b"], tmp_path / "data", max_values=2)
    assert encoder.layout.widths == (2,)
    assert encoder.transform(as_table({"x": ["d|c|b|a", "a"]})).tolist() == [[5, 4], [2, PAD]]


def test_rare_members_and_other_separators(tmp_path: Path) -> None:
    encoder = sets(["a; b", "a; c"], tmp_path / "data", min_count=2, separator="; ")
    assert list(encoder.codes[0].texts) == ["a"]
    assert encoder.transform(as_table({"x": ["a; b; c", "a|b"]})).tolist() == [[2, OTHER], [OTHER, PAD]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a", "b"], ["a"], [], None]),
        pa.array([["a", "b"], ["a"], [None], None], pa.large_list(pa.large_string())),
        pa.array([["a", "b"], ["a", ""], [None, None], None], pa.list_(pa.string(), 2)),
        pa.array([["a", "b"], ["a"], [], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.array(["a|b", "a", "", None]).dictionary_encode(),
    ],
)
def test_columns_of_lists(tmp_path: Path, column: pa.Array) -> None:
    table = pa.table({"x": column})
    assert fitted(table, tmp_path / "data", Field("x", "set", min_count=1)).transform(table).tolist() == [
        [2, 3],
        [2, PAD],
        [MISSING, PAD],
        [MISSING, PAD],
    ]


def test_lists_of_numbers(tmp_path: Path) -> None:
    encoder = fitted({"x": [[2**53 + 1, 2**53], [7]]}, tmp_path / "data", Field("x", "set", min_count=1))
    assert set(encoder.codes[0].texts) == {"7", str(2**53), str(2**53 + 1)}
    assert encoder.transform(pa.table({"x": [[7]]})).tolist() == encoder.transform(as_table({"x": ["7"]})).tolist()


def test_brackets_blanks_and_quotes_do_not_count(tmp_path: Path) -> None:
    rows = ["['a', 'b']", "[a, c]", "[]", None, '["a"]', " ['b',  'c'] "]
    encoder = sets(rows, tmp_path / "data", separator=",", trimmed=True)
    assert sorted(encoder.codes[0].texts) == ["a", "b", "c"]
    a, b, c = (encoder.codes[0].texts.index(member) + 2 for member in "abc")
    expected = [[a, b], [a, c], [MISSING, PAD], [MISSING, PAD], [a, PAD], [b, c]]
    assert encoder.transform(as_table({"x": rows})).tolist() == expected
    (first, second) = encoder.codes[0].coder()([*rows, ["b", "a"]])
    assert [list(pair) for pair in zip(first, second, strict=True)] == [*expected, [b, a]]
