"""Counts of values without an id, in bounded memory: beside a slow dictionary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.encode.sightings import Sightings

LEAST = 4


def folder(
    sightings: Sightings, counts: dict[int, int], number: int, pieces: int = 1, oldest: int = 0
) -> dict[int, int]:
    """Counts the values of a folder, in some pieces; returns how often each was seen so far."""
    keys, found = np.array(list(counts), dtype=np.uint64), {}
    for own in np.array_split(np.arange(len(keys)), pieces):
        own_counts = np.array([counts[int(key)] for key in keys[own]], dtype=np.int64)
        totals = sightings.add(keys[own], own_counts, LEAST, number)
        found |= dict(zip(keys[own].tolist(), totals.tolist(), strict=True))
    sightings.close(oldest)
    return found


def slowly(
    held: dict[int, tuple[int, int]], counts: dict[int, int], number: int, most: int
) -> tuple[dict[int, int], int]:
    """The same with a dictionary of counts and folders; returns the totals, and the largest count that was dropped."""
    totals = {key: n + held.get(key, (0, 0))[0] for key, n in counts.items()}
    for key, total in totals.items():
        held.pop(key, None)
        if total < LEAST:
            held[key] = (total, number)
    order = sorted(held, key=lambda key: (-held[key][0], -held[key][1], key))
    dropped = [held.pop(key)[0] for key in order[most:]]
    return totals, max(dropped, default=0)


DAYS = st.lists(st.dictionaries(st.integers(1, 40), st.integers(1, LEAST), max_size=25), max_size=8)


@given(days=DAYS, most=st.integers(1, 30), pieces=st.integers(1, 4))
def test_counts_of_a_dictionary(days: list[dict[int, int]], most: int, pieces: int) -> None:
    sightings, held, error = Sightings(most), dict[int, tuple[int, int]](), 0
    truth: dict[int, int] = {}
    for number, counts in enumerate(days):
        totals, dropped = slowly(held, counts, number, most)
        error += dropped
        shuffled = dict(sorted(counts.items(), key=lambda one: (one[0] * 7919) % 41))
        assert folder(sightings, shuffled, number, pieces) == totals
        state = sightings.state()
        both = zip(state["counts"].tolist(), state["last"].tolist(), strict=True)
        assert dict(zip(state["keys"].tolist(), both, strict=True)) == held
        assert len(state["keys"]) <= most
        assert state["error"] == error
        # What was admitted begins anew; all else was seen at most `error` times more often than its count says.
        truth = {key: n for key in truth.keys() | counts.keys() if (n := truth.get(key, 0) + counts.get(key, 0))}
        for key, total in totals.items():
            assert total <= truth[key] <= total + error
            truth[key] = 0 if total >= LEAST else truth[key]


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    sightings = Sightings()
    folder(sightings, {1: 1, 2: 1}, 0)
    folder(sightings, {2: 1}, 1)
    folder(sightings, {}, 2, oldest=1)
    assert sightings.state()["keys"].tolist() == [2]


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    sightings = Sightings()
    folder(sightings, {5: 1, 3: 2}, 0)
    np.savez(tmp_path / "state.npz", **sightings.state())
    with np.load(tmp_path / "state.npz") as held:
        again = Sightings.of(held)
    assert folder(again, {3: 1}, 1) == {3: 3}
    # The counts that were saved are not those that went on.
    assert sightings.state()["counts"].tolist() == [2, 1]
    with pytest.raises(ValueError, match="the keys of sightings rise"):
        Sightings.of({**sightings.state(), "keys": np.array([5, 3], dtype=np.uint64)})
    with pytest.raises(ValueError, match="a count and a folder for each"):
        Sightings.of({**sightings.state(), "counts": np.array([5], dtype=np.int32)})
