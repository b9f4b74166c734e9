"""Raw columns -> ids: vocabularies and thresholds fitted on training rows, and the one transform.

Ids of every field: 0 is a missing value, 1 is `other` (rare or never seen), 2 and up are the field's own
values, the most frequent first, or the buckets of a number. Leaves of trees may follow as further fields.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise.config.documents import parsed
from fieldwise.config.errors import BundleError, DataError
from fieldwise.data.encode.cell_codes import CellCodes
from fieldwise.data.encode.leaves import Leaves
from fieldwise.data.history.history import History
from fieldwise.data.kinds.buckets import fine_ids, spread
from fieldwise.data.kinds.lookup import MANY, Lookup
from fieldwise.data.read.cells import Cells
from fieldwise.data.read.formats import is_list, text_of
from fieldwise.data.read.texts import hash_of, places_of, texts_of
from fieldwise.data.schema import FIRST, MISSING, OTHER, PAD, Field, Layout, Schema

# What threads share is made once.
MAKING = threading.Lock()
# How programs write that a number is missing.
NO_NUMBER = frozenset(("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N"))


@dataclass
class FieldCode:
    """How one field's texts become ids. `vocabulary` holds texts, `thresholds` the bounds of buckets.

    `anchors` are the values that stand for the buckets of an interpolated number, which has their ids.
    `first_size` is the size before the vocabulary first grew, 0 where it never did.
    """

    field: Field
    vocabulary: dict[str, int]
    thresholds: NDArray[np.float64]
    width: int = 1
    first_size: int = 0
    anchors: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.empty(0))
    _lookup: Lookup | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """How many ids the field has."""
        if self.field.interpolate:
            return FIRST + len(self.anchors)
        if self.field.ordered:
            return FIRST + len(self.thresholds) + 1
        own = len(set(self.vocabulary.values())) if self.field.shared_ids else len(self.vocabulary)
        return FIRST + (self.field.hash_buckets or own)

    @property
    def in_buckets(self) -> FieldCode:
        """The code that says of an interpolated number which bucket it is in."""
        return replace(self, field=replace(self.field, interpolate=0), width=1)

    def same_numbers(self, other: FieldCode) -> bool:
        """Whether numbers have the same ids in both."""
        pairs = ((self.thresholds, other.thresholds), (self.anchors, other.anchors))
        return self.field.interpolate == other.field.interpolate and all(np.array_equal(*pair) for pair in pairs)

    def ids(self, texts: Sequence[str | None]) -> NDArray[np.int32]:
        """Ids of the texts: (n,) for a plain field, (n, width) for a set or interpolated, unused places -1."""
        if self.field.kind == "set":
            return self._sets([None if t is None else t.split(self.field.separator) for t in texts])
        if self.field.kind == "numeric":
            numbers = [as_number(text) for text in texts]
            ids = self._numbers(np.array([math.nan if n is None else n for n in numbers], dtype=np.float64))
            no_numbers = [place for place, n in enumerate(numbers) if n is None]
            ids[no_numbers] = PAD
            ids.reshape(len(ids), self.width)[no_numbers, 0] = OTHER
            return ids
        return np.array(self._categories(texts), dtype=np.int32)

    def word_ids(self, words: pa.Array) -> NDArray[np.int32]:
        """What `ids` gives for the texts of the words, none of them null; faster where there are many."""
        if self.field.kind == "numeric" and (numbers := _as_numbers(words)) is not None:
            return self._numbers(numbers)
        if self.field.kind != "categorical" or self.field.hash_buckets or len(words) < MANY:
            return self.ids([text_of(word) for word in words.to_pylist()])
        if self._lookup is None:
            self._lookup = Lookup(self.vocabulary, OTHER)
        ids, places = self._lookup.find(words)
        odd = np.flatnonzero((places < -1) | (pc.binary_length(words).to_numpy() == 0))
        ids[odd] = self.ids([text_of(word) for word in words.take(pa.array(odd)).to_pylist()])
        return ids

    def _categories(self, texts: Sequence[str | None]) -> list[int]:
        if self.field.hash_buckets:
            return [MISSING if not t else FIRST + hash_of(t) % self.field.hash_buckets for t in texts]
        find = self.vocabulary.get
        return [MISSING if not text else find(text, OTHER) for text in texts]

    def _sets(self, cells: Sequence[Sequence[str | None] | None]) -> NDArray[np.int32]:
        ids = np.full((len(cells), self.width), PAD, dtype=np.int32)
        for row, cell in enumerate(cells):
            # Members count once, whatever their order and repetitions; unknown ones are one `other`.
            members = dict.fromkeys(self._categories([text_of(m) for m in cell or () if m])) or {MISSING: None}
            kept = list(members)[: self.width]
            ids[row, : len(kept)] = kept
        return ids

    def _numbers(self, values: NDArray[np.float64]) -> NDArray[np.int32]:
        missing = np.isnan(values)
        if self.field.buckets == "log-square":
            found = self._categories([None if gone else log_square(v) for v, gone in zip(values, missing, strict=True)])
            return np.array(found, dtype=np.int32)
        if self.field.interpolate:
            return spread(fine_ids(values, self.anchors, self.field.interpolate), self.field.interpolate)
        buckets = np.searchsorted(self.thresholds, values, side="left") + FIRST
        return np.where(missing, MISSING, buckets).astype(np.int32)


class Encoder:
    """The fitted codes of all fields, in the schema's order; then their history, and the leaves of trees over all."""

    def __init__(
        self, schema: Schema, codes: list[FieldCode], history: History | None = None, leaves: Leaves | None = None
    ) -> None:
        self.schema, self.codes, self.history, self.leaves = schema, codes, history, leaves
        self._quick: CellCodes | None = None

    @property
    def layout(self) -> Layout:
        """The shape of what `transform` returns."""
        before = self._before_leaves
        return before if self.leaves is None else before.followed_by(self.leaves.sizes, ordered=False)

    @property
    def _before_leaves(self) -> Layout:
        sizes, widths = zip(*((code.size, code.width) for code in self.codes), strict=True)
        grown = any(code.first_size for code in self.codes)
        first = tuple(code.first_size or code.size for code in self.codes) if grown else ()
        plain = Layout(sizes, widths, self.schema.ordered, first)
        if self.history is None:
            return plain
        return plain.followed_by(self.history.sizes, ordered=True, width=self.history.width)

    @property
    def names(self) -> list[str]:
        """The names of all fields, those of the schema first."""
        return [*self.schema.names, *(name for part in (self.history, self.leaves) if part for name in part.names)]

    def transform(
        self,
        table: pa.Table | Cells,
        past: NDArray[np.int32] | None = None,
        known: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> NDArray[np.int32]:
        """Raw columns -> ids (n, C). The only way a raw value becomes an id, for a file or for one row.

        `past` is what the history has told of rows that have a place in it; others come after all of it. `known` are
        ids (n, width) of fields that these rows were given before, by the same codes; their columns are not needed.
        """
        there = frozenset(table.column_names).union(known or ())
        for name in self.schema.names:
            if name not in there:
                known = ", ".join(table.column_names)
                raise DataError(f"column '{name}' is missing; the table has: {known}")
        columns = [self._cell_codes().ids(table)] if isinstance(table, Cells) else self._by_columns(table, known or {})
        if self.history is not None:
            told = self.history.seen(table, self.buckets(table)) if past is None else past
            columns.append(self.history.ids(told))
        ids = np.hstack(columns)
        if self.leaves is not None:
            ids = np.hstack([ids, self.leaves.transform(ids)])
        return np.ascontiguousarray(ids)

    def _by_columns(self, table: pa.Table, known: Mapping[str, NDArray[np.int32]]) -> list[NDArray[np.int32]]:
        named = [(code.field.name, code) for code in self.codes]
        return [
            known[name] if name in known else _encode(code, table[name]).reshape(len(table), code.width)
            for name, code in named
        ]

    def _cell_codes(self) -> CellCodes:
        with MAKING:
            if self._quick is None:
                self._quick = CellCodes(self.codes, _encode)
        return self._quick

    @property
    def trees(self) -> str:
        """What tells the trees of leaf fields from others; nothing where there are none."""
        return self.leaves.fingerprint if self.leaves else ""

    def keys(self, table: pa.Table) -> NDArray[np.uint64]:
        """The history's keys of rows (n, K + 1)."""
        assert self.history is not None
        return self.history.keys(table, self.buckets(table))

    def buckets(self, table: pa.Table, columns: Collection[str] | None = None) -> dict[str, NDArray[np.int32]]:
        """The buckets of the numbers among some columns, or among those that the history counts by."""
        if columns is None:
            assert self.history is not None
            columns = self.history.settings.columns
        wanted = frozenset(columns)
        used = [code for code in self.codes if code.field.name in wanted]
        numbers = [code.in_buckets for code in used if code.field.kind == "numeric"]
        return {code.field.name: _encode(code, table[code.field.name]) for code in numbers}

    def value_of(self, field: int, number: int) -> str:
        """The text of an id, for people."""
        past = len(self.history.names) if self.history else 0
        if field >= len(self.codes) + past:
            return f"(leaf {number - FIRST})"
        if field >= len(self.codes):
            assert self.history is not None
            return self.history.value_of(field - len(self.codes), number)
        code = self.codes[field]
        if number in (MISSING, OTHER):
            return ("(missing)", "(other)")[number]
        if code.field.interpolate:
            return f"{code.anchors[number - FIRST]:g}"
        if code.field.ordered:
            bounds = ["-inf", *(f"{t:g}" for t in code.thresholds), "inf"]
            return f"({bounds[number - FIRST]}, {bounds[number - FIRST + 1]}]"
        if code.field.hash_buckets:
            return f"(hash {number - FIRST})"
        return next(text for text, found in code.vocabulary.items() if found == number)

    def save(self, folder: Path) -> None:
        """Writes vocabulary.parquet (field number, text; ids follow the order) and encoder.json."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = np.repeat(np.arange(len(self.codes), dtype=np.int32), [len(c.vocabulary) for c in self.codes])
        texts = pa.array([text for code in self.codes for text in code.vocabulary], pa.large_string())
        parquet.write_table(pa.table({"field": pa.array(numbers), "text": texts}), folder / "vocabulary.parquet")
        state = [
            {
                "thresholds": code.thresholds.tolist(),
                "anchors": code.anchors.tolist(),
                "width": code.width,
                "first_size": code.first_size,
            }
            for code in self.codes
        ]
        (folder / "encoder.json").write_text(json.dumps({"fields": state}, indent=1), encoding="utf-8")
        for part in (self.history, self.leaves):
            if part is not None:
                part.save(folder)

    @classmethod
    def load(cls, folder: Path, schema: Schema) -> Encoder:
        try:
            state = parsed(folder / "encoder.json")["fields"]
            words = _read_words(folder / "vocabulary.parquet", len(schema.fields))
            codes = [_code(*each) for each in zip(schema.fields, state, words, strict=True)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise BundleError(f"the encoder is damaged: {str(error).splitlines()[0][:300]} ({folder})") from None
        encoder = cls(schema, codes, History.load(folder, schema.history) if schema.history.keys else None)
        if schema.gbdt_leaves:
            encoder.leaves = Leaves.load(folder, encoder.layout)
        return encoder


def _read_words(path: Path, fields: int) -> list[list[str]]:
    """The texts of each field, in the order of their ids."""
    vocabulary = parquet.read_table(path)
    numbers, texts = vocabulary["field"].to_numpy(), vocabulary["text"]
    kinds = numbers.dtype.kind in "iu", pa.types.is_large_string(texts.type) or pa.types.is_string(texts.type)
    if not all(kinds) or texts.null_count:
        raise ValueError("a vocabulary has the number of a field and a text in each row")
    ends = np.searchsorted(numbers, np.arange(fields + 1))
    if ends[0] != 0 or ends[-1] != len(numbers) or (np.diff(numbers.astype(np.int64)) < 0).any():
        raise ValueError(f"a vocabulary has the texts of {fields} fields, one field after the other")
    every = texts.to_pylist()
    return [every[first:last] for first, last in pairwise(ends.tolist())]


def _code(field: Field, values: dict[str, Any], words: list[str]) -> FieldCode:
    """A field's code from what was saved, which must give ids below its size: models look them up unasked."""
    thresholds, anchors = (np.array(values.get(key, ()), dtype=np.float64) for key in ("thresholds", "anchors"))
    width, first_size = (values.get(name, 0) for name in ("width", "first_size"))
    code = FieldCode(field, numbered(field, words), thresholds, width, first_size, anchors)
    what = f"field '{field.name[:100]}'"
    if len(code.vocabulary) != len(words):
        raise ValueError(f"{what} has a text twice")
    for bounds in (thresholds, anchors):
        if bounds.ndim != 1 or np.isnan(bounds).any() or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(f"{what} has thresholds or anchors that do not rise")
    if field.interpolate and not (len(anchors) and np.isfinite(anchors).all()):
        raise ValueError(f"{what} needs finite anchors")
    most = field.max_values if field.kind == "set" else max(1, field.interpolate)
    if not _is_whole(width) or not (1 if field.kind == "set" else most) <= width <= most:
        raise ValueError(f"{what} must have a width of {most} at most, found {str(width)[:40]}")
    if not _is_whole(first_size) or not (first_size == 0 or FIRST <= first_size <= code.size):
        raise ValueError(f"{what} must have had a size of {code.size} at most, found {str(first_size)[:40]}")
    return code


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def fit_vocabulary(field: Field, counts: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Texts with at least `min_count` occurrences, the most frequent first, ties by text."""
    kept = sorted(((text, n) for text, n in counts if text and n >= field.min_count), key=lambda c: (-c[1], c[0]))
    return numbered(field, [text for text, _ in kept])


def numbered(field: Field, texts: Sequence[str]) -> dict[str, int]:
    """Ids in the order of the texts; with `shared_ids` a text has that of the first one with its hash.

    >>> numbered(Field("site"), ["a", "b"]), numbered(Field("site", shared_ids=1), ["a", "b"])
    ({'a': 2, 'b': 3}, {'a': 2, 'b': 2})
    """
    if not field.shared_ids:
        return {text: FIRST + place for place, text in enumerate(texts)}
    bins = [hash_of(text) % field.shared_ids for text in texts]
    ids = {one: FIRST + place for place, one in enumerate(dict.fromkeys(bins))}
    return {text: ids[one] for text, one in zip(texts, bins, strict=True)}


def grow(code: FieldCode, counts: Sequence[tuple[str, int]]) -> FieldCode:
    """The code with an id for each text that has earned one since, behind the old ids, none of which changes."""
    new = fit_vocabulary(code.field, [(text, n) for text, n in counts if text not in code.vocabulary])
    if not new:
        return code
    vocabulary = numbered(code.field, [*code.vocabulary, *new])
    return replace(code, vocabulary=vocabulary, first_size=code.first_size or code.size)


def log_square(value: float) -> str:
    """The Criteo winners' buckets: floor(ln(v)^2) above 2, else the integer itself."""
    if math.isinf(value):
        return str(value)
    return str(math.floor(math.log(value) ** 2)) if value > 2 else f"SP{math.floor(value)}"


def _encode(code: FieldCode, column: pa.ChunkedArray) -> NDArray[np.int32]:
    if is_list(column.type):
        if code.field.kind != "set":
            raise DataError(f"field '{code.field.name}' is {code.field.kind}, found a column of lists")
        cells = [None if cell is None else [text_of(member) for member in cell] for cell in column.to_pylist()]
        return code._sets(cells)
    if code.field.kind == "numeric" and _is_number(column.type):
        values = pc.cast(column.combine_chunks(), pa.float64(), safe=False)
        return code._numbers(np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64))
    if pa.types.is_string(column.type) and len(column) >= MANY:
        column = column.combine_chunks().dictionary_encode()
        column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type) and column.num_chunks == 1:
        return _encode_words(code, column.chunk(0))
    texts, places = texts_of(column)
    return code.ids(texts)[places]


def _encode_words(code: FieldCode, column: pa.DictionaryArray) -> NDArray[np.int32]:
    """Each word of the dictionary once; a row without a value points behind the last word."""
    ids = np.concatenate([code.word_ids(column.dictionary), code.ids([None])])
    return np.asarray(ids[places_of(column)])


def _as_numbers(words: pa.Array) -> NDArray[np.float64] | None:
    """The words as numbers where all of them plainly are; otherwise they are looked at one by one."""
    try:
        numbers = np.asarray(pc.cast(words, pa.float64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid:
        return None
    return None if np.isnan(numbers).any() else numbers


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def as_number(text: str | None) -> float | None:
    """The number of a text, NaN for a missing one, None for what is no number.

    >>> as_number("1e3"), as_number("NA"), as_number("cheap")
    (1000.0, nan, None)
    """
    if not text or text in NO_NUMBER:
        return math.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
