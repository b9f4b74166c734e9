"""The values of earlier rows as fields, each row at its own point in time: the pasts of data/kinds/past.py.

Fields with the same key, time and other settings are one `Past`: the same rows, with the ids of several columns. As in
a history, no row sees its own moment (rows of one moment do not see each other), or what came later than `delay` ago;
what came longer than `window` ago it sees no more. So neither its own label nor a later row changes what a row sees.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError, DataError
from fieldwise.data.history.counts import Floats, Keys
from fieldwise.data.history.history import every_moment, hashes_of, known_moments, mixed
from fieldwise.data.history.trails import Seen, Trail
from fieldwise.data.kinds.kind import Code, Ids
from fieldwise.data.kinds.past import GapCode, LogCode, PastCode, ResponseCode
from fieldwise.data.read.cells import Cells

FILE = "sequences.npz"
# What tells the key of a sequence from that of a history's count.
SEED = 0x5E9


class Past:
    """The fields of one sequence and what their keys had so far. `settings` are those of the first field.

    `codes` are of columns; behind their ids may come those of the responses, and of the gaps.
    """

    def __init__(self, every: Sequence[LogCode]) -> None:
        self.settings = every[0].field
        codes = self.codes = [code for code in every if isinstance(code, PastCode)]
        self.responses = [code for code in every if isinstance(code, ResponseCode)]
        self.gaps = [code for code in every if isinstance(code, GapCode)]
        own = self.settings
        self.trail = Trail(len(codes) + len(self.responses), own.last, own.delay, own.window, own.most_rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> Past:
        """What rows change is copied; the codes stay the same."""
        other = copy.copy(self)
        other.trail = copy.deepcopy(self.trail, memo)
        return other

    @property
    def names(self) -> list[str]:
        return [code.field.name for code in (*self.codes, *self.responses, *self.gaps)]

    @property
    def sizes(self) -> list[int]:
        """How many ids each column of the trail has."""
        return [code.size for code in (*self.codes, *self.responses)]

    @property
    def width(self) -> int:
        """How many ids a row has of all its fields."""
        return len(self.names) * self.settings.last

    @property
    def columns(self) -> list[str]:
        """The columns that rows need to become events, but for their time."""
        return list(dict.fromkeys([*self.settings.columns_needed, *(code.owner.field.column for code in self.codes)]))

    def keys(self, hashes: Mapping[str, NDArray[np.uint64]]) -> Keys:
        """The keys (n,) of rows from the hashes of their columns."""
        return mixed([hashes[name] for name in self.settings.columns_needed], SEED)

    def keys_of(self, table: pa.Table | Cells, buckets: Mapping[str, Ids]) -> Keys:
        """The keys (n,) of a table's rows; a number counts by its bucket, given in `buckets`."""
        return self.keys(hashes_of(table, self.settings.columns_needed, buckets))

    def ids_of(self, table: pa.Table) -> Ids:
        """What rows leave for later ones, but for their responses: the ids (n, C) of the columns."""
        for code in self.codes:
            if code.owner.field.column not in table.column_names:
                raise DataError(f"a sequence needs the column '{code.owner.field.column}' of the rows that it counts")
        found = [code.owner.column_ids(table[code.owner.field.column]).reshape(-1) for code in self.codes]
        return np.stack(found, axis=1) if found else np.empty((len(table), 0), dtype=np.int32)

    def counts(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows are events for later ones."""
        had = np.asarray(labels) > 0
        if self.settings.positives or self.settings.negatives:
            return had if self.settings.positives else ~had
        return np.ones(len(labels), dtype=np.bool_)

    def times(self, given: Floats | None, rows: int) -> Floats:
        """The moments of rows, of which some may be given; a row without one comes just after all that was counted."""
        return np.full(rows, self.trail.after) if given is None else np.where(np.isnan(given), self.trail.after, given)

    def seen(self, table: pa.Table | Cells, buckets: Mapping[str, Ids]) -> dict[str, Ids]:
        """The ids (n, N) of each field for rows that come after all that was counted; nothing is changed."""
        clock = self.settings.clock
        given = known_moments(table[clock], clock) if clock and clock in table.column_names else None
        return self.by_name(self.ids(self.trail.lookup(self.keys_of(table, buckets), self.times(given, len(table)))))

    def ids(self, seen: Seen) -> Ids:
        """What rows see -> the ids of all fields (n, C, N)."""
        gaps = [code.of_ages(seen.ages)[:, None] for code in self.gaps]
        return np.concatenate([seen.ids, *gaps], axis=1) if gaps else seen.ids

    def by_name(self, ids: Ids) -> dict[str, Ids]:
        """Ids (n, C, N) as those of each field."""
        return {name: ids[:, place] for place, name in enumerate(self.names)}

    def replay(self, keys: Keys, ids: Ids, labels: NDArray[Any], times: Floats) -> Ids:
        """Rows in the order of time: what each sees (n, C, N) before it comes; then all of them are counted."""
        if len(times) and times[0] < self.trail.end:
            raise DataError(f"a sequence runs forward: it has come to {self.trail.end:g}, found a row of {times[0]:g}")
        left = np.column_stack([ids, *(code.of_labels(labels) for code in self.responses)])
        return self.ids(self.trail.replay(keys, left, self.counts(labels), times))

    def follow(
        self, table: pa.Table, buckets: Mapping[str, Ids], labels: NDArray[Any], passed: int = 0
    ) -> dict[str, Ids]:
        """What rows see that come after all that was counted, each also those of the same call before it.

        After the call all of them are counted. `passed` rows of the same file came before these.
        """
        times = self._moments(table, passed)
        order = np.argsort(times, kind="stable")
        if len(order) and times[order[0]] < self.trail.end:
            row, clock = passed + int(order[0]) + 1, self.settings.clock
            found = f"it has come to {self.trail.end:g}, found {times[order[0]]:g} in '{clock}' (row {row})"
            raise DataError(
                f"a sequence runs forward: {found}; leave out what it has counted, and sort the file by {clock}"
            )
        ids = np.empty((len(table), len(self.names), self.settings.last), dtype=np.int32)
        rows = (self.keys_of(table, buckets)[order], self.ids_of(table)[order], labels[order], times[order])
        ids[order] = self.replay(*rows)
        return self.by_name(ids)

    def _moments(self, table: pa.Table, passed: int) -> Floats:
        """The moments of rows, each of which must have one; where the order is the time, they go on from the last."""
        clock = self.settings.clock
        if not clock:
            return np.arange(len(table), dtype=np.float64) + max(0.0, self.trail.end + 1)
        if clock not in table.column_names:
            raise DataError(
                f"a sequence needs the time column '{clock}'; the rows have: {', '.join(table.column_names)}"
            )
        return every_moment(table[clock], clock, passed)


Buckets = Callable[[Sequence[str]], Mapping[str, Ids]]


class Pasts:
    """All sequences of an encoder's codes."""

    def __init__(self, codes: Sequence[Code]) -> None:
        groups: dict[str, list[LogCode]] = {}
        for code in codes:
            if isinstance(code, LogCode):
                groups.setdefault(code.field.sequence, []).append(code)
        self.every = [Past(group) for group in groups.values()]

    def __bool__(self) -> bool:
        return bool(self.every)

    def __iter__(self) -> Iterator[Past]:
        return iter(self.every)

    @property
    def end(self) -> float:
        """The last moment that was counted."""
        return max((past.trail.end for past in self.every), default=-math.inf)

    def take(self, other: Pasts, given_up: Mapping[str, Ids]) -> None:
        """Goes on from what another encoder of the same fields has counted; its own ids may have grown.

        Ids of a column's values that were `given_up` are `other` in rows that came before.
        """
        for past, known in zip(self.every, other.every, strict=True):
            past.trail = copy.deepcopy(known.trail)
            for column, code in enumerate(past.codes):
                past.trail.forget(column, given_up.get(code.owner.field.name, ()))

    def seen(self, table: pa.Table | Cells, buckets: Buckets) -> dict[str, Ids]:
        """The ids (n, N) of all fields, for rows that come after all that was counted."""
        return {
            name: ids for past in self for name, ids in past.seen(table, buckets(past.settings.columns_needed)).items()
        }

    def follow(self, table: pa.Table, buckets: Buckets, labels: NDArray[Any], passed: int = 0) -> dict[str, Ids]:
        """As Past.follow, of all fields."""
        found = [past.follow(table, buckets(past.settings.columns_needed), labels, passed) for past in self]
        return {name: ids for own in found for name, ids in own.items()}

    def save(self, folder: Path) -> None:
        """Writes an .npz file; an encoder without sequences has none."""
        if not self:
            return
        arrays: dict[str, Any] = {}
        for number, past in enumerate(self.every):
            arrays |= {f"{number}_{name}": array for name, array in past.trail.state().items()}
            arrays[f"{number}_end"] = np.float64(past.trail.end)
        np.savez_compressed(folder / FILE, **arrays)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        if not self:
            return
        try:
            with np.load(folder / FILE, allow_pickle=False) as held:
                for number, past in enumerate(self.every):
                    state = {name: held[f"{number}_{name}"] for name in ("keys", "counts", "ids", "times")}
                    past.trail.load(state, float(held[f"{number}_end"]), past.sizes)
        except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
            raise BundleError(f"the sequences are damaged: {str(error).splitlines()[0][:300]} ({folder})") from None
