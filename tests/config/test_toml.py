"""What is written as TOML reads back as it was."""

from __future__ import annotations

import math
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fieldwise.config.toml import dumps

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
PLAIN = st.one_of(TEXT, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False))
VALUE = PLAIN | st.lists(PLAIN, max_size=4)
TABLE = st.dictionaries(TEXT, VALUE, max_size=4)


@given(st.dictionaries(TEXT, VALUE | TABLE | st.lists(TABLE, min_size=1, max_size=3), max_size=5))
def test_round_trip(values: dict[str, Any]) -> None:
    assert tomllib.loads(dumps(values)) == values


def test_nan_and_tuples() -> None:
    found = tomllib.loads(dumps({"x": math.nan, "y": (1, 2)}))
    assert math.isnan(found["x"])
    assert found["y"] == [1, 2]


def test_nothing() -> None:
    assert tomllib.loads(dumps({})) == {}
