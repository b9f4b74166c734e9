"""Rows as a public file has them: which columns they may have, and fields made of them as the recipe makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fieldwise.data.kinds.kind import plain_text
from fieldwise.data.recipes import find
from fieldwise.data.schema import Schema
from fieldwise.serving.live_history import Column


class RawColumns:
    """What the recipe of a schema adds to its columns; nothing where there is no recipe.

    `sources` are the raw columns that fields are made of, `idle` those that a raw row has besides and no field needs.
    """

    def __init__(self, schema: Schema) -> None:
        recipe = find(schema.recipe) if schema.recipe else None
        known = schema.columns
        self.derived = {one.name: one for one in recipe.derived if one.name in known} if recipe else {}
        sources = dict.fromkeys(one.of for one in self.derived.values())
        self.sources = tuple(name for name in sources if name not in known)
        raw = dict.fromkeys(name for layout in recipe.layouts for name in layout) if recipe else {}
        self.idle = tuple(name for name in raw if name not in {*known, *self.sources})

    def source(self, name: str) -> set[str]:
        """The columns that a column comes from."""
        return {name, self.derived[name].of} if name in self.derived else {name}

    def over(self, column: Column) -> Column:
        """The columns of rows, with those that are derived made where the rows do not give them."""
        if not self.derived:
            return column

        def with_derived(name: str) -> Sequence[Any]:
            given, one = column(name), self.derived.get(name)
            if one is None or None not in given:
                return given
            cells = [plain_text(value, one.of) for value in column(one.of)]
            return [one.value(cell) if own is None else own for own, cell in zip(given, cells, strict=True)]

        return with_derived
