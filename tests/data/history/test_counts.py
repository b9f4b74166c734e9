"""The table of counts against a dictionary: growing, fading, dropping what is too much, keeping on disk."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from fieldwise.data.history.counts import Counts, Events


def drawn(rows: int, kinds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys (rows, 2) by a skewed law, labels, rising times with ties."""
    rng = np.random.default_rng(seed)
    keys = (rng.random((rows, 2)) ** 3 * kinds).astype(np.uint64) * np.uint64(2654435761) + np.uint64(1)
    return keys, rng.integers(0, 2, rows), np.sort(rng.integers(0, rows // 3, rows)).astype(float)


def test_counts_are_those_of_a_dictionary():
    keys, labels, _ = drawn(5000, 3000)
    counts, twin = Counts(), defaultdict(lambda: np.zeros(2))
    for row, label in zip(keys, labels, strict=True):
        for key in row:
            twin[key] += (1, label)
    counts.add(keys, labels)
    assert counts.used == len(twin)
    assert np.array_equal(counts.lookup(keys)[17], [twin[key] for key in keys[17]])
    assert all(np.array_equal(counts.lookup(np.array([[key]], dtype=np.uint64))[0, 0], twin[key]) for key in twin)
    assert not counts.lookup(np.array([[np.uint64(1 << 60)]])).any()
    counts.add(keys, labels, weight=-1.0)
    assert not counts.lookup(keys).any()


def test_counts_fade_by_their_half_life():
    counts = Counts(half_life=10.0)
    key = np.array([[5]], dtype=np.uint64)
    counts.add(key, np.array([1]), np.array([0.0]))
    counts.add(key, np.array([0]), np.array([10.0]))
    assert counts.lookup(key, np.array([10.0]))[0, 0] == pytest.approx([1.5, 0.5], abs=1e-12)
    assert counts.lookup(key, np.array([30.0]))[0, 0] == pytest.approx([1.5 / 4, 0.5 / 4], abs=1e-12)


def test_times_before_the_epoch_fade_too():
    counts = Counts(half_life=10.0)
    key = np.array([[5]], dtype=np.uint64)
    counts.add(key, np.array([1]), np.array([-100.0]))
    assert counts.lookup(key, np.array([-90.0]))[0, 0] == pytest.approx([0.5, 0.5], abs=1e-12)


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_too_many_keys_drop_the_rarest_and_say_how_wrong_they_may_be(cut: int):
    keys, labels, _ = drawn(6000, 100_000)
    exact, bounded, cut_up = Counts(), Counts(most=1000), Counts(most=1000)
    exact.add(keys, labels)
    bounded.add(keys, labels)
    for first in range(0, len(keys), cut):
        cut_up.add(keys[first : first + cut], labels[first : first + cut])
    assert bounded.used <= 1000 < exact.used
    missing = exact.lookup(keys)[..., 0] - bounded.lookup(keys)[..., 0]
    assert bounded.error > 0
    assert missing.min() >= 0
    assert missing.max() <= bounded.error
    for name, values in bounded.state().items():
        assert np.array_equal(values, cut_up.state()[name])


def test_a_table_comes_back_from_disk(tmp_path: Path):
    keys, labels, times = drawn(3000, 2000)
    counts, again = Counts(half_life=50.0), Counts(half_life=50.0)
    counts.add(keys, labels, times)
    counts.save(tmp_path / "counts.npz", more=np.arange(3))
    assert again.load(tmp_path / "counts.npz")["more"].tolist() == [0, 1, 2]
    assert np.array_equal(counts.lookup(keys, times + 5), again.lookup(keys, times + 5))
    copied = counts.copy()
    counts.add(keys, labels, times)
    assert np.array_equal(copied.lookup(keys, times + 5), again.lookup(keys, times + 5))


@pytest.mark.parametrize(("delay", "window"), [(0, 0), (20, 0), (0, 100), (20, 100)])
def test_a_stream_sees_what_lies_between_delay_and_window(delay: float, window: float):
    keys, labels, times = drawn(1500, 30)
    counts, found = Counts(), np.zeros((*keys.shape, 2))
    counts.stream(Events(keys, labels, times), 0, 0, 0, np.array([delay, window]), found)
    for row in range(len(keys)):
        seen = (times < times[row]) & (times <= times[row] - delay)
        if window:
            seen &= times >= times[row] - window
        for column in range(2):
            same = seen[:, None] & (keys == keys[row, column])
            assert found[row, column].tolist() == [same.sum(), (same * labels[:, None]).sum()]


def test_a_few_keys_are_found_in_a_loaded_table_as_in_a_placed_one(tmp_path: Path) -> None:
    """A row that is predicted alone finds what it finds among many, before the compiled loops are there."""
    rng = np.random.default_rng(0)
    keys = rng.integers(1, 50, (200, 3)).astype(np.uint64)
    counts = Counts()
    counts.add(keys, rng.integers(0, 2, 200))
    counts.save(tmp_path / "counts.npz")
    asked = rng.integers(1, 100, (20, 3)).astype(np.uint64)
    loaded = Counts()
    loaded.load(tmp_path / "counts.npz")
    np.testing.assert_array_equal(loaded.lookup(asked), counts.lookup(asked))
    assert loaded.loaded is not None
    loaded.add(keys[:5], np.ones(5))
    counts.add(keys[:5], np.ones(5))
    np.testing.assert_array_equal(loaded.lookup(asked), counts.lookup(asked))
    empty = Counts()
    empty.save(tmp_path / "empty.npz")
    loaded = Counts()
    loaded.load(tmp_path / "empty.npz")
    assert not loaded.lookup(asked).any()
