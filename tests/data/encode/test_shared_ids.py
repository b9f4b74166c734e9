"""Values that earned an id share it where their hashes agree, as the Criteo winners have it; written out slowly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.encoder import Encoder, FieldCode, fit_vocabulary, grow
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.read.texts import hash_of
from fieldwise.data.schema import FIRST, OTHER, Field, Schema

FIELD = Field("x", min_count=2, shared_ids=5)


def slow_ids(texts: list[str], bins: int) -> dict[str, int]:
    """The next free id for a bin that is met first, that of the bin for others."""
    of_bin: dict[int, int] = {}
    found = {}
    for text in texts:
        place = hash_of(text) % bins
        if place not in of_bin:
            of_bin[place] = FIRST + len(of_bin)
        found[text] = of_bin[place]
    return found


def test_frequent_values_are_hashed_and_rare_ones_are_other(tmp_path: Path) -> None:
    values = [f"v{number}" for number in range(40) for _ in range(1 + number % 3)]
    table = pa.table({"x": values, "label": np.arange(len(values)) % 2})
    schema = Schema("label", (FIELD,))
    prepare({"train": lambda: iter([table])}, tmp_path / "data", "label", schema, Split((1.0, 0.0, 0.0)))
    encoder = Encoder.load(tmp_path / "data" / "encoder", Schema.load(tmp_path / "data" / "schema.toml"))
    kept = sorted((v for v in set(values) if values.count(v) > 1), key=lambda v: (-values.count(v), v))
    expected = slow_ids(kept, 5)
    assert encoder.codes[0].vocabulary == expected
    assert encoder.layout.sizes == (FIRST + len(set(expected.values())),)
    assert encoder.transform(table)[:, 0].tolist() == [expected.get(value, OTHER) for value in values]


def test_growing_keeps_every_id() -> None:
    old = FieldCode(FIELD, fit_vocabulary(FIELD, [("a", 9), ("b", 3), ("c", 2)]), np.empty(0))
    grown = grow(old, [(f"new{number}", 2) for number in range(20)])
    assert {text: grown.vocabulary[text] for text in old.vocabulary} == old.vocabulary
    assert grown.vocabulary == slow_ids(list(grown.vocabulary), 5)
    assert grown.size == FIRST + 5


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="shared_ids must be at least 0, found -1"):
        Field("x", shared_ids=-1)
