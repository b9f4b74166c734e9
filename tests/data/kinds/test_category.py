"""Categories: vocabularies by hand, hashes, and ids that several values share, as the Criteo winners have it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fieldwise.config.errors import ConfigError, DataError
from fieldwise.data.kinds.category import CategoryField, WordCode
from fieldwise.data.kinds.kind import FIRST, MISSING, OTHER, Field
from fieldwise.data.read.formats import as_table
from fieldwise.data.read.texts import hash_of
from tests.data.fitted import fitted, ids_of


def test_rare_unseen_and_missing(tmp_path: Path) -> None:
    rows = {"x": ["b", "a", "a", "b", "a", "rare", "", None]}
    encoder = fitted(rows, tmp_path / "data", Field("x", min_count=2))
    assert encoder.layout.sizes == (4,)
    assert encoder.transform(as_table(rows))[:, 0].tolist() == [3, 2, 2, 3, 2, OTHER, MISSING, MISSING]
    assert encoder.transform(as_table({"x": ["never", "a", float("nan")]}))[:, 0].tolist() == [OTHER, 2, MISSING]
    assert [encoder.value_of(0, number) for number in range(4)] == ["(missing)", "(other)", "a", "b"]


def test_the_most_frequent_first_ties_by_text() -> None:
    counts = [("z", 3), ("b", 2), ("a", 2), ("c", 9), ("rare", 1), ("", 50)]
    assert CategoryField("x", min_count=2).frequent(counts) == ["c", "z", "a", "b"]


def test_names_that_differ_in_case_have_their_own_vocabulary(tmp_path: Path) -> None:
    fields = Field("a", min_count=1), Field("A", min_count=1), Field("we\"ird'", min_count=1)
    rows = {"a": ["x", "y"], "A": ["p", "q"], "we\"ird'": ["1", "2"]}
    assert ids_of(rows, tmp_path / "data", *fields) == [[2, 2, 2], [3, 3, 3]]


def test_hashing_needs_no_vocabulary(tmp_path: Path) -> None:
    rows = {"x": [f"v{number}" for number in range(1000)] + [""]}
    encoder = fitted(rows, tmp_path / "data", Field("x", hash_buckets=10))
    ids = encoder.transform(as_table(rows))[:, 0]
    assert encoder.layout.sizes == (12,)
    assert ids[-1] == MISSING
    counts = np.bincount(ids[:-1], minlength=12)
    assert counts[:2].sum() == 0
    assert (counts[2:] > 50).all()
    # Bundles of other days and machines must agree: this number is for ever.
    assert encoder.transform(as_table({"x": ["v0", "unseen"]}))[:, 0].tolist() == [6, 5]
    assert encoder.value_of(0, 6) == "(hash 4)"


def test_lists_in_a_plain_field(tmp_path: Path) -> None:
    encoder = fitted({"x": ["a", "b"]}, tmp_path / "data", Field("x"))
    with pytest.raises(DataError, match="field 'x' is categorical, found a column of lists"):
        encoder.transform(as_table({"x": [["a"]]}))


# Ids that several values share.

SHARED = CategoryField("x", min_count=2, shared_ids=5)


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
    encoder = fitted({"x": values}, tmp_path / "data", SHARED)
    kept = sorted((v for v in set(values) if values.count(v) > 1), key=lambda v: (-values.count(v), v))
    expected = slow_ids(kept, 5)
    assert encoder.codes[0].vocabulary == expected
    assert encoder.layout.sizes == (FIRST + len(set(expected.values())),)
    assert encoder.transform(as_table({"x": values}))[:, 0].tolist() == [expected.get(value, OTHER) for value in values]


def test_growing_keeps_every_id() -> None:
    old = SHARED.words(["a", "b", "c"])
    assert isinstance(old, WordCode)
    grown = old.grown(SimpleNamespace(texts=[(f"new{number}", 2) for number in range(20)]))
    assert {text: grown.vocabulary[text] for text in old.vocabulary} == old.vocabulary
    assert grown.vocabulary == slow_ids(list(grown.vocabulary), 5)
    assert (grown.size, grown.first_size) == (FIRST + 5, old.size)
    assert grown.grew_from(old)
    assert not old.grew_from(grown)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="shared_ids must be at least 0, found -1"):
        Field("x", shared_ids=-1)
