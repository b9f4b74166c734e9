"""Many texts at once -> their places in a vocabulary, without a Python object for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fieldwise.data.kinds.category import WordCode
    from fieldwise.data.read.cells import Cells

# Fewer texts than this are looked up one by one: that needs no compiled loop.
MANY = 1 << 14


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


class CellWords:
    """The loop over cells of fields with vocabularies: one hash table over the words of all of them."""

    def __init__(self, codes: Sequence[WordCode]) -> None:
        from fieldwise.data.read import cell_id_loops
        from fieldwise.data.read.cell_loops import ROOM

        self.loops, vocabularies = cell_id_loops, [code.vocabulary for code in codes]
        ids = np.array([number for words in vocabularies for number in words.values()], dtype=np.int64)
        fields = np.repeat(np.arange(len(vocabularies)), [len(words) for words in vocabularies])
        # Frequent words, whose ids are low, come first and are found at once.
        order = np.argsort(ids, kind="stable")
        every = [text.encode("utf-8", "surrogatepass") for words in vocabularies for text in words]
        texts = [every[place] for place in order.tolist()]
        bounds = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
        self.texts: Any = np.frombuffer(b"".join([*texts, bytes(ROOM)]), dtype=np.uint8)
        # Half of the places at most are taken, so that most texts are found at once.
        places = 1 << max(4, (4 * len(texts)).bit_length() - 1)
        self.table, self.starts = np.zeros((places, 2), dtype=np.uint64), np.zeros(places, dtype=np.int64)
        cell_id_loops.fill(self.table, self.starts, fields[order], ids[order], self.texts, bounds)

    def run(self, cells: Cells, columns: Any, places: Any, ids: Any, left: Any) -> None:
        words = (self.table, self.starts, self.texts)
        self.loops.categories(cells.block, cells.ends, len(cells.names), columns, places, *words, ids, left)


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
