"""Rows in the layout of a public raw file: which columns they may have, and the fields a recipe derives from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fieldwise.data.kinds.kind import plain_text
from fieldwise.data.recipes import find
from fieldwise.data.schema import Schema
from fieldwise.serving.live_history import Column


class RawColumns:
    """The columns that the recipe of a schema adds; none if it has no recipe.

    `sources` are the raw columns that fields are derived from, `idle` the other raw columns, which no field needs.
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
        """The columns that may give a column its values: itself, and the raw one it is derived from."""
        return {name, self.derived[name].of} if name in self.derived else {name}

    def over(self, column: Column) -> Column:
        """The columns of rows; a derived column is computed where a row does not give it."""
        if not self.derived:
            return column

        def with_derived(name: str) -> Sequence[Any]:
            given, one = column(name), self.derived.get(name)
            if one is None or None not in given:
                return given
            cells = [plain_text(value, one.of) for value in column(one.of)]
            return [one.value(cell) if own is None else own for own, cell in zip(given, cells, strict=True)]

        return with_derived
