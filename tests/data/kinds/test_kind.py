"""The contract of every kind: all ways to its ids agree, what was saved comes back, growing changes no id."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise.config.errors import ConfigError, DataError
from fieldwise.data.encode.cell_codes import CellCodes
from fieldwise.data.kinds import category, kind
from fieldwise.data.kinds.buckets import Histogram
from fieldwise.data.kinds.kind import FIRST, KINDS, MISSING, PAD, Code, Field
from fieldwise.data.kinds.number import as_number
from fieldwise.data.kinds.set import SetField
from fieldwise.data.read.cells import cells_of
from fieldwise.data.read.formats import text_of
from fieldwise.data.schema import Schema

# What to try of a kind besides its defaults; a kind that is not named here is held to the contract all the same.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "categorical": [{"min_count": 1}, {"hash_buckets": 7}, {"shared_ids": 3, "min_count": 1}],
    "numeric": [
        {"max_buckets": 3},
        {"buckets": "count", "bucket_count": 2},
        {"buckets": "explicit", "thresholds": (-1.0, 0.0, 1e3)},
        {"buckets": "tree"},
        {"buckets": "log-square", "min_count": 1},
        {"buckets": "log-square", "hash_buckets": 5},
        {"interpolate": 1},
        {"interpolate": 4, "max_buckets": 3},
    ],
    "sequence": [{"min_count": 1}, {"min_count": 1, "newest": "first", "max_values": 2}],
    "set": [
        {"min_count": 1, "separator": ",", "trimmed": True},
        {"min_count": 1},
        {"hash_buckets": 7, "separator": "; "},
        {"shared_ids": 2, "max_values": 2},
    ],
    "time": [{"part": "weekday", "format": "seconds"}, {"format": "YYMMDDHH"}],
}
# A past is made of earlier rows, not of its own cells: tests/data/history/test_sequences.py.
OWN_CELLS = sorted(KINDS.keys() - {"past"})
FIELDS = [Field("x", name, **more) for name in OWN_CELLS for more in ({}, *VARIANTS.get(name, []))]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters='\0\r\n,"'), max_size=9),
    st.floats(width=32).map(str),
    st.integers(-3, 2000).map(str),
    st.sampled_from(
        ["a", "a|b", "b|a|b", "|", "a; b", "3.0", "3", "True", "true", "x.0", "NA", "nan", "1_0", "inf", "-0"]
    ),
)
VALUES = TEXTS | st.none() | st.booleans() | st.floats() | st.integers(-(2**60), 2**60)


@dataclass
class Counted:
    """What DuckDB would count of these texts, every other row of them positive."""

    rows: list[str]
    field: Field

    @property
    def texts(self) -> list[tuple[str, int]]:
        cells = [set(map(text_of, self._members(text))) for text in self.rows]
        return list(Counter(text_of(text) or "" for cell in cells for text in cell).items())

    @property
    def longest(self) -> int:
        return max((len(set(self._members(text))) for text in self.rows), default=0)

    def _members(self, text: str) -> list[str]:
        return self.field.members(text) if isinstance(self.field, SetField) else [text]

    @property
    def odd_texts(self) -> list[str]:
        return [text for text in self.rows if as_number(text) is None]

    @property
    def histogram(self) -> Histogram:
        numbers = [as_number(text) for text in self.rows]
        kept = [(n, place % 2) for place, n in enumerate(numbers) if n is not None and np.isfinite(n)]
        values, counts = np.unique([n for n, _ in kept], return_counts=True)
        positives = [sum(label for n, label in kept if n == value) for value in values]
        return Histogram(values.astype(np.float64), counts, np.array(positives, dtype=np.int64))


def fit(field: Field, rows: list[str | None]) -> Code:
    """The field fitted on these rows, on numbers alone where it takes no others."""
    texts = [text for row in rows if (text := text_of(row)) is not None]
    return field.fit(Counted([t for t in texts if as_number(t) is not None] if field.is_number else texts, field))


def square(ids: Any, code: Code) -> list[list[int]]:
    return np.asarray(ids, dtype=np.int64).reshape(-1, code.width).tolist()


@pytest.mark.parametrize("field", FIELDS, ids=str)
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(TEXTS, max_size=20), asked=st.lists(TEXTS, max_size=12), values=st.lists(VALUES, max_size=8))
def test_all_ways_to_ids_agree(field: Field, rows: list[str], asked: list[str], values: list[Any]) -> None:
    code, raw = fit(field, rows), [*asked, *rows, None]
    expected = square(code.ids([text_of(text) for text in raw]), code)
    assert all(one[0] != PAD and set(one) <= {PAD, *range(code.size)} for one in expected)
    assert expected[-1] == [MISSING] + [PAD] * (code.width - 1)
    # Each value alone, as a text and as the server reads it.
    assert [square(code.ids([text_of(text)]), code)[0] for text in raw] == expected
    coder = code.coder()
    assert [list(one) for one in zip(*coder(raw), strict=True)] == expected
    spelt = square(code.ids([text_of(value) for value in values]), code)
    assert [list(ids) for value in values for ids in zip(*coder([value]), strict=True)] == spelt
    # A column of a table, with and without a dictionary, few words and many.
    column = pa.chunked_array([pa.array(raw, pa.string())])
    for few in (kind.MANY, 0):
        with pytest.MonkeyPatch.context() as patch:
            for room in (kind, category):
                patch.setattr(room, "MANY", few)
            for form in (column, pa.chunked_array([column.combine_chunks().dictionary_encode()])):
                assert square(code.column_ids(form), code) == expected
    # Cells as they lie in a file, where an empty one is missing.
    block = "".join(f"{text or ''},{text or ''}\n" for text in raw).encode()
    cells = cells_of(block, ["more", "x"], ["x"], ",")
    assert cells is not None
    assert square(CellCodes([code]).ids(cells), code) == expected


@pytest.mark.parametrize("field", FIELDS, ids=str)
@settings(max_examples=8, deadline=None)
@given(rows=st.lists(TEXTS, max_size=20), more=st.lists(TEXTS, max_size=20))
def test_what_is_saved_comes_back_and_grows(field: Field, rows: list[str], more: list[str]) -> None:
    code, texts = fit(field, rows), [text_of(text) for text in [*rows, *more]]
    (again,) = Schema.from_toml(Schema("y", (field,)).to_toml(), "here").fields
    assert again == field
    state = json.loads(json.dumps({**code.state, "width": code.width, "first_size": code.first_size}))
    loaded = again.load(code.texts, state)
    assert (loaded.size, loaded.width) == (code.size, code.width)
    np.testing.assert_array_equal(loaded.ids(texts), code.ids(texts))
    assert loaded.same_ids(code)
    numbers = field.is_number
    grown = code.grown(Counted([t for t in texts if t and not (numbers and as_number(t) is None)], field))
    assert grown.grew_from(code)
    assert grown.size >= code.size
    for old, new in zip(square(code.ids(texts), code), square(grown.ids(texts), grown), strict=True):
        assert [id for id in old if id >= FIRST] == [id for id in new if id in old and id >= FIRST][: len(old)]
    assert all(isinstance(grown.value_of(id), str) for id in range(grown.size))


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_words_for_people(field: Field) -> None:
    code = fit(field, ["1", "2", "2", "3", "3"])
    assert [code.value_of(id) for id in (0, 1)] == ["(missing)", "(other)"]
    assert code.hint
    assert len(code.examples(2)) <= 2
    for text in code.examples(8):
        assert code.ids([text]).ravel()[0] >= FIRST
    assert field.ordered or field.unordered
    with pytest.raises(DataError, match="field 'x' takes a text, a number, true, false or null, found an object"):
        code.coder()([{"a": 1}])


def test_an_unknown_kind_is_refused() -> None:
    line = f"field 'x': unknown kind 'picture'; available: {', '.join(sorted(KINDS))}"
    with pytest.raises(ConfigError, match=f"^{line}$"):
        Field("x", "picture")
    with pytest.raises(ConfigError, match=rf"^{line} \(here\)$"):
        Schema.from_toml('label = "y"\n[[field]]\nname = "x"\nkind = "picture"', "here")
