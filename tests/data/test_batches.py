"""Every row once an epoch, in an order that the seed and the epoch alone decide."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fieldwise.data.batches import Batch, batches, steps_per_epoch
from fieldwise.data.dataset import Part


def numbered(rows: int, weighted: bool = False) -> Part:
    """Rows that say which they are."""
    ids = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
    weights = np.arange(rows, dtype=np.float32) if weighted else None
    return Part(ids, (np.arange(rows) % 3 == 0).astype(np.uint8), weights)


def rows_of(found: list[Batch]) -> NDArray[np.int64]:
    return np.concatenate([batch.ids[:, 0] // 2 for batch in found]) if found else np.empty(0, dtype=np.int64)


SIZES = st.integers(1, 40)


@given(st.integers(0, 100), SIZES, SIZES, st.integers(0, 3), st.integers(0, 3))
def test_every_row_once(rows: int, size: int, block: int, seed: int, epoch: int) -> None:
    found = list(batches(numbered(rows), size, seed, epoch, shuffle_rows=block))
    assert sorted(rows_of(found)) == list(range(rows))
    assert len(found) == steps_per_epoch(rows, size)
    assert all(len(batch.ids) == size for batch in found[:-1])
    assert len(found) < 2 or size <= 2 * len(found[-1].ids) <= 3 * size
    assert not found or 2 * len(found[-1].ids) <= 3 * size


@given(st.integers(1, 100), SIZES, SIZES, st.integers(0, 9))
def test_starting_in_the_middle_gives_the_tail(rows: int, size: int, block: int, start: int) -> None:
    whole = list(batches(numbered(rows), size, 1, 2, shuffle_rows=block))
    tail = list(batches(numbered(rows), size, 1, 2, start, block))
    assert len(tail) == max(0, len(whole) - start)
    for one, other in zip(whole[start:], tail, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.labels, other.labels)


def test_the_seed_and_the_epoch_decide() -> None:
    def order(seed: int, epoch: int, block: int = 1000) -> list[int]:
        return rows_of(list(batches(numbered(200), 32, seed, epoch, shuffle_rows=block))).tolist()

    for block in (1000, 50):
        orders = [order(seed, epoch, block) for seed in (0, 1) for epoch in (0, 1)]
        assert order(0, 0, block) == orders[0]
        assert len({tuple(one) for one in orders}) == 4
    assert order(0, 0) != list(range(200))


def test_blocks_are_read_in_long_stretches() -> None:
    """In each stretch of a block's length, rows of one block, shuffled; blocks in another order."""
    order = rows_of(list(batches(numbered(1000), 100, 3, 0, shuffle_rows=100))).reshape(10, 100)
    blocks = order // 100
    assert (blocks == blocks[:, :1]).all()
    assert sorted(blocks[:, 0]) == list(range(10))
    assert blocks[:, 0].tolist() != list(range(10))
    assert all(one.tolist() != sorted(one) for one in order)


def test_labels_and_weights_stay_with_their_rows() -> None:
    part = numbered(50, weighted=True)
    for batch in batches(part, 7, 0, 0):
        rows = batch.ids[:, 0] // 2
        assert batch.labels.dtype == np.float32
        assert batch.labels.tolist() == (rows % 3 == 0).tolist()
        assert batch.weights is not None
        assert batch.weights.tolist() == rows.tolist()
    assert next(batches(numbered(5), 2, 0, 0)).weights is None


def test_batches_are_copies() -> None:
    """Whoever changes a batch does not change the rows on disk."""
    part = numbered(4)
    batch = next(batches(part, 4, 0, 0))
    batch.ids[:] = -1
    batch.labels[:] = 9
    assert part.ids.min() == 0
    assert part.labels.max() == 1
