"""Rows of a request -> ids (n, C) of all fields or of some; the same ids as the encoder's transform."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.kind import Coder
from fieldwise.data.read.formats import text_of
from fieldwise.data.schema import MISSING, OTHER
from fieldwise.serving.live_history import Column, LiveHistory, LivePast
from fieldwise.serving.raw_values import RawColumns

Row = Mapping[str, Any]


def column_of(rows: Sequence[Row]) -> Column:
    """The values of a column in rows; absent ones are None."""
    return lambda name: [row.get(name) for row in rows]


def ranked_column(context: Row, candidates: Sequence[Row], names: Collection[str]) -> Column:
    """The values of a column in candidates, or else in their context; `names` are the columns of any candidate."""

    def column(name: str) -> Sequence[Any]:
        shared = context.get(name)
        if name not in names:
            return [shared] * len(candidates)
        return [row.get(name, shared) for row in candidates]

    return column


def _always(ids: NDArray[np.int32]) -> Coder:
    """A coder that gives these ids whatever the values are: of a position, which is fixed in service."""
    return lambda values: [[id] * len(values) for id in ids.tolist()]


class RowCoder:
    """An encoder for few rows at a time."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.layout, self.names = encoder, encoder.layout, encoder.names
        fixed = encoder.fixed
        self.coders = [
            _always(fixed[code.field.name][0, : code.width]) if code.field.role else code.coder()
            for code in encoder.codes
        ]
        self.rank_coders = [
            (code.field.name, _always(fixed[code.field.name][0, -1:]) if code.field.role else code.ranks.coder())
            for code in encoder.codes
            if code.ranks
        ]
        self.raw = RawColumns(encoder.schema)
        self.live_history = LiveHistory(encoder, encoder.history) if encoder.history is not None else None
        self.live_pasts = [LivePast(encoder, past) for past in encoder.pasts]
        self.plain = len(self.coders)
        history = encoder.history
        keys = [key.split("*") for key in history.settings.keys for _ in history.settings.parts] if history else []
        time = [history.settings.time] if history else []
        columns = [[] if code.field.role else code.field.columns for code in encoder.codes]
        columns += [[*key, *time] for key in keys]
        # The columns that determine each field; a leaf depends on all of them.
        self.before_leaves = len(columns)
        leaves = len(self.names) - self.before_leaves
        self.sources = [
            set().union(*map(self.raw.source, own)) for own in [*columns, *[encoder.schema.columns] * leaves]
        ]

    def fields_of(self, names: Collection[str]) -> list[int]:
        """The fields that depend on any of these columns."""
        given = set(names)
        return [field for field, own in enumerate(self.sources) if own & given]

    def ids(self, column: Column, rows: int, fields: Sequence[int] | None = None) -> NDArray[np.int32]:
        """The ids (n, C') of some fields, given in rising order; or of all of them, and the ranks behind them."""
        column = self.raw.over(column)
        if fields is not None:
            return self._ids(column, rows, fields)
        ranks = [np.array(coder(column(name)), dtype=np.int32).T for name, coder in self.rank_coders]
        return np.ascontiguousarray(np.hstack([self._ids(column, rows, range(len(self.names))), *ranks]))

    def _ids(self, column: Column, rows: int, wanted: Sequence[int]) -> NDArray[np.int32]:
        if wanted[-1] < self.before_leaves:
            return self._before_leaves(column, rows, wanted)
        assert self.encoder.leaves is not None
        before = self._before_leaves(column, rows, range(self.before_leaves))
        all_ids = np.hstack([before, self.encoder.leaves.transform(before)])
        return np.ascontiguousarray(all_ids[:, self.layout.without_ranks.columns_of(wanted)])

    def _before_leaves(self, column: Column, rows: int, wanted: Sequence[int]) -> NDArray[np.int32]:
        columns: list[list[int]] = []
        past = self._past(column, rows, wanted)
        for field in wanted:
            if field in past:
                columns += past[field].T.tolist()
            elif field < self.plain:
                columns += self.coders[field](column(self.encoder.codes[field].field.column))
        parts = [np.ascontiguousarray(np.array(columns, dtype=np.int32).T)] if columns else []
        history_fields = [field - self.plain for field in wanted if field >= self.plain]
        if history_fields:
            assert self.live_history is not None
            width = self.live_history.history.width
            places = [field * width + place for field in history_fields for place in range(width)]
            parts.append(self.live_history.ids(column, rows)[:, places])
        return parts[0] if len(parts) == 1 else np.hstack(parts)

    def _past(self, column: Column, rows: int, wanted: Sequence[int]) -> dict[int, NDArray[np.int32]]:
        """The ids (n, N) of those wanted fields that are made of earlier rows."""
        asked = {
            self.names[field]: field for field in wanted if field < self.plain and self.encoder.codes[field].field.key
        }
        found: dict[int, NDArray[np.int32]] = {}
        for live in self.live_pasts:
            if any(name in asked for name in live.past.names):
                found |= {asked[name]: ids for name, ids in live.ids(column, rows).items() if name in asked}
        return found

    @property
    def counts_rows(self) -> bool:
        """Whether events change what later rows see."""
        return self.live_history is not None or bool(self.live_pasts)

    def count(self, row: Row, label: float, time: float | None) -> None:
        """Counts a row and its response in the history and the sequences, if the encoder has any."""
        column = self.raw.over(column_of([row]))
        if self.live_history:
            self.live_history.add(column, label, time)
        for live in self.live_pasts:
            live.add(column, label, time)

    def words(self, row: Row, ids: NDArray[np.int32]) -> dict[str, str]:
        """The values of a row with these ids (C,), by the names of its fields, as people read them."""
        found, column = {}, self.raw.over(column_of([row]))
        starts = np.cumsum([0, *self.layout.widths])
        for field, name in enumerate(self.names):
            id = int(ids[starts[field]])
            if field < self.plain and self.encoder.codes[field].field.role:
                found[name] = f"{self.encoder.codes[field].field.at} (fixed)"
            elif id == MISSING:
                found[name] = "(missing)"
            elif field < self.plain and self.encoder.codes[field].field.key:
                own = [int(each) for each in ids[starts[field] : starts[field + 1]] if each >= 0]
                found[name] = ", ".join(self.encoder.value_of(field, each) for each in own)
            elif field >= self.plain or self.encoder.codes[field].field.column != name:
                found[name] = self.encoder.value_of(field, id)
            else:
                (value,) = column(name)
                text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(text_of(value))
                # Training may not have seen some members of a set.
                unseen = OTHER in ids[starts[field] : starts[field + 1]]
                found[name] = f"{text} (other)" if unseen else text
        return found
