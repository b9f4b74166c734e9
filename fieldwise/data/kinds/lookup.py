"""Many texts at once -> their places in a vocabulary, without a Python object for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Fewer texts than this are looked up one by one: that needs no compiled loop.
MANY = 256


class Lookup:
    """A hash table over a vocabulary: texts, each with its id; others have the id `other`."""

    def __init__(self, vocabulary: Mapping[str, int], other: int) -> None:
        from fieldwise.data.read import word_loops

        self.loops = word_loops
        self.data, self.bounds = _bytes_of(pa.array(list(vocabulary), pa.large_string()))
        places = 16
        while places < 2 * len(vocabulary):
            places *= 2
        self.ids = np.array([*vocabulary.values(), other], dtype=np.int32)
        self.hashes, self.numbers = np.zeros(places, dtype=np.uint64), np.zeros(places, dtype=np.int64)
        word_loops.fill(self.hashes, self.numbers, self.data, self.bounds)

    def find(self, texts: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids and the places of texts, none of them null.

        The place is -1 for an unknown text and -2 for one that may be spelt in another way: its id does not count.
        """
        data, bounds = _bytes_of(texts.cast(pa.large_string()))
        found = np.empty(len(texts), dtype=np.int64)
        self.loops.find(self.hashes, self.numbers, self.data, self.bounds, data, bounds, found)
        return self.ids[np.maximum(found, -1)], found


def word_hashes(words: pa.Array) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """`hash_of` of the words, none of them null; and which of them must be hashed one by one instead."""
    from fieldwise.data.read import word_loops

    data, bounds = _bytes_of(words.cast(pa.large_string()))
    found, odd = np.empty(len(words), dtype=np.uint64), np.empty(len(words), dtype=np.bool_)
    word_loops.digests(data, bounds, found)
    word_loops.odd_ones(data, bounds, odd)
    return found, odd


def _bytes_of(texts: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all texts, and the bounds of each."""
    _, bounds, data = texts.buffers()
    held = (
        np.frombuffer(bounds, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1] if bounds else np.zeros(1)
    )
    empty = data is None or not data.size
    return np.zeros(0, dtype=np.uint8) if empty else np.frombuffer(data, dtype=np.uint8), held.astype(np.int64)
