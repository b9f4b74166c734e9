"""The compiled look-up and hash give what Python's dict and hashlib give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fieldwise.data.history import history
from fieldwise.data.history.history import column_hashes
from fieldwise.data.kinds import category, kind, lookup
from fieldwise.data.kinds.category import CategoryField
from fieldwise.data.kinds.number import BucketCode, NumberField
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.texts import hash_of

WORDS = some.text(max_size=12) | some.sampled_from(["3.0", "3", "-7.0", "True", "true", "False", "x.0", "", "١.0"])


@settings(max_examples=60, deadline=None)
@given(some.lists(WORDS, unique=True), some.lists(WORDS, unique=True))
def test_ids_and_hashes_of_words(known: list[str], asked: list[str]) -> None:
    code = CategoryField("x").words(list(dict.fromkeys(text for word in known if (text := text_of(word)))))
    column = pa.chunked_array([pa.array([*asked, None, *known], pa.string()).dictionary_encode()])
    texts = [text_of(word) for word in [*asked, None, *known]]
    with pytest.MonkeyPatch.context() as patch:
        for room in (kind, category, history):
            patch.setattr(room, "MANY", 0)
        assert code.column_ids(column).tolist() == code.ids(texts).tolist()
        assert column_hashes(column).tolist() == [hash_of(text or "") for text in texts]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 127, 128, 129, 300])
def test_hashes_of_any_length(length: int) -> None:
    found, odd = lookup.word_hashes(pa.array(["ä" * (length // 2) + "x" * (length % 2)]))
    assert bool(odd[0]) == (length > 128)
    if length <= 128:
        assert found[0] == hash_of("ä" * (length // 2) + "x" * (length % 2))


def test_texts_of_a_slice() -> None:
    table = lookup.Lookup({"b": 2, "c": 3}, 1)
    ids, places = table.find(pa.array(["a", "b", "c", "d"]).slice(1, 2))
    assert (ids.tolist(), places.tolist()) == ([2, 3], [0, 1])


def test_numbers_of_words() -> None:
    code = BucketCode(NumberField("x"), np.array([1.0, 10.0]))
    for words in (["1", "2.5", "-3e2", "inf", "11"], ["1", "NA", "2"], ["1", "cheap", "nan", "2"], ["+1", " 2", "1_0"]):
        column = pa.chunked_array([pa.array([*words, None]).dictionary_encode()])
        assert code.column_ids(column).tolist() == code.ids([*words, None]).tolist()
