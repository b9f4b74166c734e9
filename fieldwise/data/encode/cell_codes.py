"""Cells of a block of text -> ids, all fields of a row at once, without a column or a Python object for any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.kinds.kind import CellLoop, Code, id_columns
from fieldwise.data.read.cells import Cells


class CellCodes:
    """The codes of all fields, in groups that go through one compiled loop each.

    A code's own `column_ids` takes the fields without a loop, and the cells that a loop leaves. `fixed` are the ids
    of fields whose cells are not read, by their names.
    """

    def __init__(self, codes: Sequence[Code], fixed: Mapping[str, NDArray[np.int32]] | None = None) -> None:
        self.places = id_columns(codes)
        self.codes, self.width = codes, self.places[-1].stop
        groups: dict[type[CellLoop] | None, list[int]] = {}
        self.fixed: dict[int, NDArray[np.int32]] = {}
        for number, code in enumerate(codes):
            if fixed and code.field.name in fixed:
                self.fixed[number] = fixed[code.field.name]
            else:
                groups.setdefault(code.loop, []).append(number)
        self.plain = groups.pop(None, [])
        self.loops = [(loop([codes[n] for n in own]), own) for loop, own in groups.items() if loop]

    def ids(self, cells: Cells) -> NDArray[np.int32]:
        """The ids (n, C) that the codes give for the columns of the cells."""
        ids = np.empty((len(cells), self.width), dtype=np.int32)
        for number, own in self.fixed.items():
            ids[:, self.places[number]] = own
        for loop, fields in self.loops:
            self._quick(loop, cells, fields, ids)
        for number in self.plain:
            code, column = self.codes[number], self.codes[number].field.column
            there = column in cells.places
            found = code.column_ids(cells[column]).reshape(len(cells), -1) if there else code.missing(len(cells))
            ids[:, self.places[number]] = found
        return ids

    def _quick(self, loop: CellLoop, cells: Cells, fields: list[int], ids: NDArray[np.int32]) -> None:
        """Fields by a compiled loop, and what it leaves of them."""
        from fieldwise.data.read.cell_id_loops import LEFT

        names = [self.codes[number].field.column for number in fields]
        columns, places = [cells.places[name] for name in names], [self.places[n].start for n in fields]
        left = np.zeros(len(fields), dtype=np.int64)
        loop.run(cells, np.array(columns), np.array(places), ids, left)
        for f in np.flatnonzero(left).tolist():
            rows = np.flatnonzero(ids[:, places[f]] == LEFT)
            ids[rows, places[f]] = self.codes[fields[f]].column_ids(cells.column(names[f], rows))
