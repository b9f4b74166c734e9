"""Values as texts: a column's distinct ones, and a hash that is the same everywhere and always."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldwise.data.read.formats import text_of

# Texts that are spelt one by one sooner than all at once.
FEW = 100


def texts_of(column: pa.ChunkedArray) -> tuple[list[str | None], NDArray[np.int64]]:
    """A column's distinct texts and, for each row, the place of its text among them."""
    if not len(column) or pa.types.is_null(column.type):
        return [None], np.zeros(len(column), dtype=np.int64)
    if not pa.types.is_dictionary(column.type):
        try:
            column = column.dictionary_encode()
        except pa.ArrowNotImplementedError:
            texts = [text_of(value) for value in column.to_pylist()]
            column = pa.chunked_array([pa.array(texts, pa.string()).dictionary_encode()])
    encoded = column.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    values = _whole_moments(encoded.dictionary)
    if pa.types.is_integer(values.type):
        texts = values.cast(pa.string()).to_pylist()
    elif pa.types.is_string(values.type):
        texts = _spelt(values)
    else:
        texts = [text_of(value) for value in values.to_pylist()]
    return [*texts, None], places_of(encoded).astype(np.int64)


def places_of(words: pa.DictionaryArray) -> NDArray[Any]:
    """Where each row's word is in the dictionary; a row without a value points behind the last word."""
    indices = words.indices
    # Asked first, because filling costs more than all else where rows are few; a small type may not hold the new place.
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(len(words.dictionary))
    return np.asarray(indices.to_numpy())


def _spelt(values: pa.Array) -> list[str | None]:
    """`text_of` of texts, most of which have one spelling only."""
    texts: list[str | None] = values.to_pylist()
    if len(texts) < FEW:
        return [text_of(text) for text in texts]
    other = pc.or_kleene(pc.ends_with(values, ".0"), pc.is_in(values, pa.array(["True", "False", ""])))
    for place in np.flatnonzero(other.fill_null(False).to_numpy(zero_copy_only=False)).tolist():
        texts[place] = text_of(texts[place])
    return texts


def _whole_moments(values: pa.Array) -> pa.Array:
    """Times to the microsecond, which is what Python's own types hold."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values.cast(pa.duration("us"), safe=False) if pa.types.is_duration(values.type) else values


def hash_of(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
