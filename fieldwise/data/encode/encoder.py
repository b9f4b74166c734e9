"""Raw columns -> ids by the fitted codes of the fields, which data/kinds/ makes; saved and loaded as a folder.

Ids of every field: 0 is a missing value, 1 is `other` (rare or never seen), 2 and up are the field's own
values, the most frequent first, or the buckets of a number. Leaves of trees may follow as further fields.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fieldwise.config.documents import parsed
from fieldwise.config.errors import BundleError, DataError, missing_column
from fieldwise.data.encode.cell_codes import CellCodes
from fieldwise.data.encode.leaves import Leaves
from fieldwise.data.encode.lifetimes import Lifetimes
from fieldwise.data.history.history import FILES as HISTORY_FILES
from fieldwise.data.history.history import History
from fieldwise.data.history.sequences import FILE as SEQUENCES_FILE
from fieldwise.data.history.sequences import Pasts
from fieldwise.data.kinds.kind import BY_BUCKET, FIRST, Code, Field, id_columns
from fieldwise.data.kinds.ranks import rank_code
from fieldwise.data.read.cells import Cells
from fieldwise.data.schema import Layout, Schema

# The files of an encoder that `save_past` writes.
PAST_FILES = (*HISTORY_FILES, SEQUENCES_FILE)
# What threads share is made once.
MAKING = threading.Lock()
# Every field's entry in encoder.json has these, of whatever kind it is.
NO_BOUNDS: dict[str, list[float]] = {"thresholds": [], "anchors": []}


class Encoder:
    """The fitted codes of all fields, in the schema's order; then their history, and the leaves of trees over all."""

    def __init__(
        self, schema: Schema, codes: Sequence[Code], history: History | None = None, leaves: Leaves | None = None
    ) -> None:
        self.schema, self.codes, self.history, self.leaves = schema, codes, history, leaves
        self.pasts = Pasts(codes)
        # What the chain of folders remembers of values; only those who continue it need to know.
        self.lifetimes: Lifetimes | None = None
        self._quick: dict[tuple[bool, bool], CellCodes] = {}

    @property
    def layout(self) -> Layout:
        """The shape of what `transform` returns."""
        before = self._before_leaves
        whole = before if self.leaves is None else before.followed_by(self.leaves.sizes, ordered=False)
        return replace(whole, ranked=tuple(place for place, code in enumerate(self.codes) if code.ranks))

    @property
    def _before_leaves(self) -> Layout:
        sizes, widths = zip(*((code.size, code.width) for code in self.codes), strict=True)
        grown = any(code.first_size for code in self.codes)
        first = tuple(code.first_size or code.size for code in self.codes) if grown else ()
        plain = Layout(sizes, widths, self.schema.ordered, first, **shared_vectors(self.schema.fields))
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
        served: bool = False,
    ) -> NDArray[np.int32]:
        """Raw columns -> ids (n, C), by the codes of the fields. The server has RowCoder for the same ids of few rows.

        `past` are the history fields of rows that have a place in it; others come after all of it. `known` are
        ids (n, width) of fields that these rows were given before, by the same codes, and with its rank behind them
        where a field has one; their columns are not needed. In rows that are `served`, positions are fixed.
        """
        there = frozenset(table.column_names)
        known = {**(known or {}), **(self._fixed(len(table)) if served else {})}
        for field in self.schema.fields:
            if field.column not in there and field.name not in known and not field.may_be_absent:
                raise DataError(missing_column(field.column, table.column_names, "the table has"))
        if self.pasts and not all(name in known for name in self.schema.pasts):
            known = {**self.pasts.seen(table, partial(self.buckets, table)), **known}
        columns = (
            [self._by_cells(table, known, served)]
            if isinstance(table, Cells)
            else self._by_columns(table, there, known)
        )
        if self.history is not None:
            fields = self.history.seen(table, self.buckets(table)) if past is None else past
            columns.append(self.history.ids(fields))
        ids = np.hstack(columns)
        if self.leaves is not None:
            ids = np.hstack([ids, self.leaves.transform(ids)])
        return np.ascontiguousarray(np.hstack([ids, *self._ranks(table, known, served)]))

    def _by_cells(self, cells: Cells, known: Mapping[str, NDArray[np.int32]], served: bool) -> NDArray[np.int32]:
        ids = self._cell_codes(served).ids(cells)
        for code, place in zip(self.codes, id_columns(self.codes), strict=True):
            if code.field.name in known:
                ids[:, place] = known[code.field.name][:, : code.width]
        return ids

    @property
    def fixed(self) -> dict[str, NDArray[np.int32]]:
        """The ids (1, width) of the positions in served rows, and their ranks behind them where they have some."""
        return {code.field.name: code.fixed_ids for code in self.codes if code.field.role}

    def _fixed(self, rows: int) -> dict[str, NDArray[np.int32]]:
        return {name: np.broadcast_to(ids, (rows, ids.shape[1])) for name, ids in self.fixed.items()}

    def served(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ids (n, C) of rows as they were shown -> as they are served, with the positions fixed."""
        found = np.array(ids)
        for name, own in self.fixed.items():
            found[:, self.layout.columns_of([self.schema.names.index(name)])] = own
        return self.with_leaves(found)

    def with_leaves(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ids (n, C) of which some were changed, with the leaves that they have now."""
        if self.leaves is None:
            return np.ascontiguousarray(ids)
        last = self.layout.id_columns
        plain = np.ascontiguousarray(ids[:, : last - len(self.leaves.names)])
        return np.ascontiguousarray(np.hstack([plain, self.leaves.transform(plain), ids[:, last:]]))

    def _by_columns(
        self, table: pa.Table, there: Collection[str], known: Mapping[str, NDArray[np.int32]]
    ) -> list[NDArray[np.int32]]:
        def ids(code: Code) -> NDArray[np.int32]:
            if code.field.name in known:
                return known[code.field.name][:, : code.width]
            if code.field.column not in there:
                return code.missing(len(table))
            return code.column_ids(table[code.field.column]).reshape(len(table), code.width)

        return [ids(code) for code in self.codes]

    def _ranks(
        self, table: pa.Table | Cells, known: Mapping[str, NDArray[np.int32]], served: bool
    ) -> list[NDArray[np.int32]]:
        """The columns that trees read numbers by, (n, 1) each or all in one."""
        named = [(code.field.name, code.ranks) for code in self.codes if code.ranks]
        if isinstance(table, Cells):
            return [self._cell_codes(served, ranks=True).ids(table)] if named else []
        return [
            known[name][:, -1:] if name in known else ranks.column_ids(table[name]).reshape(len(table), 1)
            for name, ranks in named
        ]

    def _cell_codes(self, served: bool, ranks: bool = False) -> CellCodes:
        with MAKING:
            if (served, ranks) not in self._quick:
                codes = [code.ranks for code in self.codes if code.ranks] if ranks else self.codes
                fixed = [code for code in self.codes if code.field.role and served]
                own = {
                    code.field.name: code.fixed_ids[:, -1:] if ranks else code.fixed_ids[:, : code.width]
                    for code in fixed
                }
                self._quick[served, ranks] = CellCodes(codes, own)
        return self._quick[served, ranks]

    @property
    def trees(self) -> str:
        """The fingerprint of the trees of leaf fields; empty where there are none."""
        return self.leaves.fingerprint if self.leaves else ""

    @property
    def counts_rows(self) -> bool:
        """Whether what earlier rows had becomes fields of later ones."""
        return self.history is not None or bool(self.pasts)

    @property
    def end(self) -> float:
        """The last moment that history and sequences have come to."""
        timed = self.history is not None and self.history.settings.time
        return max(self.pasts.end, self.history.end) if self.history and timed else self.pasts.end

    @property
    def without_past(self) -> Encoder:
        """The same codes without the counts of the history, for those who are given what rows see of it."""
        other = copy.copy(self)
        other.history, other._quick = self.history and History(self.history.settings), {}
        return other

    def save_past(self, folder: Path) -> None:
        """Writes the files of history and sequences alone, anew."""
        for part in (self.history, self.pasts):
            if part is not None:
                part.save(folder)

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
        used = [code for code in self.codes if code.field.name in wanted and code.field.history_key == BY_BUCKET]
        return {code.field.name: code.in_buckets.column_ids(table[code.field.name]) for code in used}

    def value_of(self, field: int, number: int) -> str:
        """The text of an id, for people."""
        past = len(self.history.names) if self.history else 0
        if field >= len(self.codes) + past:
            return f"(leaf {number - FIRST})"
        if field >= len(self.codes):
            assert self.history is not None
            return self.history.value_of(field - len(self.codes), number)
        return self.codes[field].value_of(number)

    def numbers_of(self, field: int) -> NDArray[np.float64] | None:
        """The number that each id of a field stands for, NaN where it is none; None where the ids are no numbers."""
        if field < len(self.codes):
            return self.codes[field].numbers
        past = self.history.numbers if self.history else []
        return past[field - len(self.codes)] if field < len(self.codes) + len(past) else None

    def save(self, folder: Path) -> None:
        """Writes vocabulary.parquet (field number, text; ids follow the order) and encoder.json."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = [code.texts for code in self.codes]
        numbers = np.repeat(np.arange(len(texts), dtype=np.int32), [len(own) for own in texts])
        words = pa.array([text for own in texts for text in own], pa.large_string())
        parquet.write_table(pa.table({"field": pa.array(numbers), "text": words}), folder / "vocabulary.parquet")
        state = [
            {**NO_BOUNDS, **code.state, "width": code.width, "first_size": code.first_size, "ranks": _rank_bounds(code)}
            for code in self.codes
        ]
        (folder / "encoder.json").write_text(json.dumps({"fields": state}, indent=1), encoding="utf-8")
        for part in (self.history, self.pasts, self.leaves, self.lifetimes):
            if part is not None:
                part.save(folder)

    @classmethod
    def load(cls, folder: Path, schema: Schema, lifetimes: bool = False) -> Encoder:
        """The encoder of a folder; with its `lifetimes`, if it has some, to continue it."""
        try:
            state = parsed(folder / "encoder.json")["fields"]
            words = _read_words(folder / "vocabulary.parquet", len(schema.fields))
            codes = _codes(schema, state, words)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise BundleError(f"the encoder is damaged: {str(error).splitlines()[0][:300]} ({folder})") from None
        encoder = cls(schema, codes, History.load(folder, schema.history) if schema.history.keys else None)
        encoder.pasts.load(folder)
        if schema.gbdt_leaves:
            encoder.leaves = Leaves.load(folder, encoder.layout.without_ranks)
        if lifetimes:
            encoder.lifetimes = Lifetimes.load(folder, codes)
        return encoder


def shared_vectors(fields: Sequence[Field]) -> dict[str, tuple[Any, ...]]:
    """What a layout has of fields that share the vectors of others, or are places of sequences."""
    places = {field.name: place for place, field in enumerate(fields)}
    groups: dict[str, list[int]] = {}
    for place, field in enumerate(fields):
        if field.sequence:
            groups.setdefault(field.sequence, []).append(place)
    like = tuple(places[field.shares or field.name] for field in fields)
    shared = like != tuple(places.values())
    return {"like": like if shared else (), "sequences": tuple(map(tuple, groups.values()))}


def _codes(schema: Schema, state: Sequence[Any], words: Sequence[list[str]]) -> list[Code]:
    """The codes from what was saved; those that share the ids of others come after these."""
    codes: dict[str, Code] = {}
    every = zip(schema.fields, state, words, strict=True)
    for field, own, texts in sorted(every, key=lambda each: bool(each[0].shares)):
        codes[field.name] = _code(field, own, texts, codes.get(field.shares))
    return [codes[name] for name in schema.names]


def _rank_bounds(code: Code) -> list[float]:
    return code.ranks.state["thresholds"] if code.ranks else []


def _read_words(path: Path, fields: int) -> list[list[str]]:
    """The texts of each field, in the order of their ids."""
    # As one file: `read_table` loads what reads whole folders, and pandas with it.
    with parquet.ParquetFile(path) as file:
        vocabulary = file.read()
    numbers, texts = vocabulary["field"].to_numpy(), vocabulary["text"]
    kinds = numbers.dtype.kind in "iu", pa.types.is_large_string(texts.type) or pa.types.is_string(texts.type)
    if not all(kinds) or texts.null_count:
        raise ValueError("a vocabulary has the number of a field and a text in each row")
    ends = np.searchsorted(numbers, np.arange(fields + 1))
    if ends[0] != 0 or ends[-1] != len(numbers) or (np.diff(numbers.astype(np.int64)) < 0).any():
        raise ValueError(f"a vocabulary has the texts of {fields} fields, one field after the other")
    every = texts.to_pylist()
    return [every[first:last] for first, last in pairwise(ends.tolist())]


def _code(field: Field, state: dict[str, Any], texts: list[str], owner: Code | None = None) -> Code:
    """A field's code from what was saved, which must give ids below its size: models look them up unasked."""
    what = f"field '{field.name[:100]}'"
    for key in (*NO_BOUNDS, "alone", "ranks"):
        bounds = np.array(state.get(key, ()), dtype=np.float64)
        if bounds.ndim != 1 or np.isnan(bounds).any() or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(f"{what} has thresholds or anchors that do not rise")
    width, first_size = (state.get(name, 0) for name in ("width", "first_size"))
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in (width, first_size)):
        raise ValueError(f"{what} must have a width and a size in whole numbers")
    code = (
        field.load(texts, {**state, "width": width, "first_size": first_size})
        if owner is None
        else field.over(owner, width)
    )
    if code.width != width:
        raise ValueError(f"{what} must have a width of {code.width}, found {str(width)[:40]}")
    if not (first_size == 0 or FIRST <= first_size <= code.size):
        raise ValueError(f"{what} must have had a size of {code.size} at most, found {str(first_size)[:40]}")
    code.ranks = rank_code(field, np.array(state.get("ranks", ()), dtype=np.float64))
    return code
