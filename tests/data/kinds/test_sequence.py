"""Sequences in cells: order and repetitions, the newest first, and the ids of another column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.kind import MISSING, OTHER, PAD, Field
from fieldwise.data.read.formats import as_table
from fieldwise.data.schema import Schema
from tests.data.fitted import fitted


def sequences(values: list[Any], folder: Path, **settings: Any) -> Encoder:
    return fitted({"x": values}, folder, Field("x", "sequence", **{"min_count": 1, **settings}))


def test_order_and_repetitions_stay_the_newest_first(tmp_path: Path) -> None:
    encoder = sequences(["a|a|b", "a", "", None], tmp_path / "data")
    assert encoder.layout.widths == (3,)
    assert encoder.layout.sequences == ((0,),)
    found = encoder.transform(as_table({"x": ["a|a|b", "b|a", "b||a|a|a", "", None, "new"]}))
    a, b = encoder.codes[0].ids(["a", "b"])[:, 0].tolist()
    assert found.tolist() == [
        [b, a, a],
        [a, b, PAD],
        [a, a, a],
        [MISSING, PAD, PAD],
        [MISSING, PAD, PAD],
        [OTHER, PAD, PAD],
    ]


def test_the_newest_may_stand_first(tmp_path: Path) -> None:
    encoder = sequences(["a|b|c", "a|b", "a"], tmp_path / "data", newest="first", max_values=2)
    assert encoder.transform(as_table({"x": ["c|b|a"]})).tolist() == [[4, 3]]
    last = sequences(["a|b|c", "a|b", "a"], tmp_path / "other", max_values=2)
    assert last.transform(as_table({"x": ["c|b|a"]})).tolist() == [[2, 3]]


@pytest.mark.parametrize("past", [["u|v", "v|w", "", "w|new"], pa.array([["u", "v"], ["v", "w"], [], ["w", "new"]])])
def test_ids_and_vectors_of_another_column(tmp_path: Path, past: Any) -> None:
    rows = {"item": ["u", "v", "w", "u"], "past": past}
    fields = Field("past", "sequence", like="item"), Field("item", min_count=1)
    encoder = fitted(rows, tmp_path / "data", *fields)
    assert (encoder.layout.like, encoder.layout.rows) == ((1, 1), 5)
    u, v, w = encoder.codes[1].ids(["u", "v", "w"]).tolist()
    found = encoder.transform(as_table(rows))
    assert found[:, :2].tolist() == [[v, u], [w, v], [MISSING, PAD], [OTHER, w]]
    # What a server reads, and a vocabulary that is saved once.
    assert encoder.codes[0].coder()([["u", "v"], "w", None]) == [[v, w, MISSING], [u, PAD, PAD]]
    assert encoder.codes[0].texts == []


def test_an_owner_must_be_a_category() -> None:
    for fields, line in [
        ((Field("past", "sequence", like="item"),), "like takes a categorical field, found 'item', no field"),
        ((Field("past", "sequence", like="n"), Field("n", "numeric")), "found 'n', numeric field"),
        ((Field("past", "sequence", like="past"),), "found 'past', sequence field"),
    ]:
        with pytest.raises(ConfigError, match=line):
            Schema("label", fields)
    with pytest.raises(ConfigError, match="unknown newest 'left'"):
        Field("past", "sequence", newest="left")
