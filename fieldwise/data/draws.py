"""Random numbers that are drawn beside a user's rows: each purpose has a separate stream.

numpy's plain stream of a seed is the one that people draw their own columns from. A split that reads it too puts rows
into parts by what made their labels: with `default_rng(0).random(n) < 0.2` as labels, all positives went to training.
"""

from __future__ import annotations

import zlib

import numpy as np

# What is drawn. A key of 0 would be the plain stream again: numpy fills what a seed lacks with zeros.
SPLIT, NEGATIVES, BALANCE, HIDDEN = zlib.crc32(b"split"), 1, 2, 3


def stream(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """The random numbers of a seed for one purpose.

    >>> bool(stream(0, SPLIT).random() == np.random.default_rng(0).random())
    False
    """
    return np.random.default_rng([seed, purpose, *more])


def skip(random: np.random.Generator, numbers: int) -> None:
    """Passes over so many numbers of a stream, as if `random.random(numbers)` had drawn them.

    >>> one, other = stream(0, SPLIT), stream(0, SPLIT)
    >>> skip(one, 7)
    >>> bool(one.random() == other.random(8)[7])
    True
    """
    assert isinstance(random.bit_generator, np.random.PCG64)
    random.bit_generator.advance(numbers)
