"""The only way rows reach a model: shuffled by seed and epoch, and able to start in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.dataset import Part


@dataclass(frozen=True)
class Batch:
    """Some rows: ids (B, C), labels (B,) float32, weights (B,) float32 where rows are weighted."""

    ids: NDArray[np.int32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None

    @property
    def rows(self) -> int:
        return len(self.labels)


def batches(
    part: Part, batch_size: int, seed: int, epoch: int, start: int = 0, shuffle_rows: int = 4_000_000
) -> Iterator[Batch]:
    """One epoch's batches from number `start` on; the last has half to one and a half times as many rows."""
    for rows in rows_of_batches(part.rows, batch_size, seed, epoch, start, shuffle_rows):
        yield take(part, rows, epoch)


def rows_of_batches(
    rows: int, batch_size: int, seed: int, epoch: int, start: int = 0, shuffle_rows: int = 4_000_000
) -> Iterator[NDArray[np.int64]]:
    """The numbers of the rows of each batch.

    Parts of up to `shuffle_rows` rows are shuffled globally. Larger ones are cut into blocks of that many
    rows, which come in a random order and are shuffled within, so that the disk is read in long stretches.
    """
    waiting = np.empty(0, dtype=np.int64)
    number, last = 0, steps_per_epoch(rows, batch_size) - 1
    for block in _orders(rows, seed, epoch, shuffle_rows):
        waiting = np.concatenate([waiting, block])
        whole = min(len(waiting) // batch_size, last - number)
        for place in range(whole):
            if number >= start:
                yield waiting[place * batch_size : (place + 1) * batch_size]
            number += 1
        waiting = waiting[whole * batch_size :]
    if len(waiting) and number >= start:
        yield waiting


def share(rows: NDArray[np.int64], rank: int, workers: int) -> NDArray[np.int64]:
    """The rows of a batch that a worker takes: all workers' together are the batch, each row once.

    >>> [share(np.arange(5), rank, 2).tolist() for rank in (0, 1)]
    [[0, 2, 4], [1, 3]]
    """
    return rows[rank::workers]


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """How many batches an epoch has. Fewer rows than half a batch join the one before: alone, a few rows would be
    a step as long as any other and, worse, a tenth of batch norm's running statistics just before an evaluation."""
    whole, rest = divmod(rows, batch_size)
    return whole + (rest > 0 and (not whole or 2 * rest >= batch_size))


def _orders(rows: int, seed: int, epoch: int, shuffle_rows: int) -> Iterator[NDArray[np.int64]]:
    random = np.random.default_rng([seed, epoch])
    blocks = -(-rows // shuffle_rows)
    for block in random.permutation(blocks):
        first = int(block) * shuffle_rows
        yield first + random.permutation(min(shuffle_rows, rows - first))


def take(part: Part, rows: NDArray[np.int64], epoch: int = 0) -> Batch:
    """These rows as a batch, as a model is to see them in an epoch."""
    weights = None if part.weights is None else np.take(np.asarray(part.weights), rows)
    return Batch(part.shown(rows, epoch), np.take(np.asarray(part.labels), rows).astype(np.float32), weights)
