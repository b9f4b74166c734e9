"""Ids -> vectors, as graphs: the lookups of nn/embedding.py and nn/crosses.py, for some of the fields.

A graph has its fields on two sides: those of the context, with one row for a request, and those of the rows. A graph
of whole rows has no context.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import Layout
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part

# As in nn/crosses.py.
HASHED_STRIDE = 2**31
GOLDEN, FIRST_MIX, SECOND_MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class Ids:
    """The ids of some fields: a value of the graph (n, C), and the layout that gives each field's columns."""

    value: str
    fields: tuple[int, ...]
    layout: Layout

    @classmethod
    def of(cls, graph: Graph, name: str, fields: Sequence[int], layout: Layout, rows: int | str) -> Ids:
        width = sum(layout.widths[field] for field in fields)
        return cls(graph.input(name, np.int32, (rows, width)), tuple(fields), layout)

    @classmethod
    def joined(cls, graph: Graph, context: Ids, rows: Ids) -> Ids:
        """The ids of both sides in every row."""
        count = graph.op("Slice", graph.op("Shape", rows.value), [0], [1])
        repeated = graph.op("Expand", context.value, graph.op("Concat", count, [1], axis=0))
        value = graph.op("Concat", repeated, rows.value, axis=1)
        return cls(value, context.fields + rows.fields, rows.layout)

    def columns(self, fields: Sequence[int]) -> list[int]:
        """The columns of some of the fields."""
        widths = [self.layout.widths[field] for field in self.fields]
        starts = dict(zip(self.fields, [0, *itertools.accumulate(widths)], strict=False))
        return [starts[field] + place for field in fields for place in range(self.layout.widths[field])]

    def take(self, graph: Graph, fields: Sequence[int]) -> str:
        """The ids of some of the fields."""
        columns = self.columns(fields)
        whole = columns == list(range(sum(self.layout.widths[field] for field in self.fields)))
        return self.value if whole else graph.take(self.value, columns, 1)


@dataclass(frozen=True)
class Rows:
    """Looks up rows of tables; `names` are the graph's names of a table's arrays."""

    graph: Graph
    names: dict[int, dict[str, str]]

    def looked_up(self, table: Part, rows: str) -> str:
        """Row numbers (...) -> vectors (..., D) in float32."""
        names = self.names[id(table)]
        found = self.graph.op("Gather", names["weight"], rows, axis=0)
        if table.arrays["weight"].dtype != np.float32:
            found = self.graph.op("Cast", found, to=1)
        if "scale" in names:
            found = self.graph.op("Mul", found, self.graph.op("Gather", names["scale"], rows, axis=0))
        return found


def vectors(rows: Rows, table: Part, ids: Ids, fields: Sequence[int], layout: Layout) -> tuple[str, list[int]]:
    """The vectors (n, G, D) of those fields that the table has, and the list of these fields in the same order.

    The layout says which fields share the table's rows.
    """
    order = table["fields"]
    offsets = dict(zip(order, layout.only(order).offsets, strict=True))
    kinds: dict[tuple[int, bool], list[int]] = {}
    wanted, ordered = frozenset(fields), frozenset(layout.ordered)
    for field in (field for field in order if field in wanted):
        width = layout.widths[field]
        kinds.setdefault((width, width > 1 and field in ordered), []).append(field)
    found, places = [], []
    for (width, interpolated), group in kinds.items():
        own = ids.take(rows.graph, group)
        found.append(_group(rows, table, own, [offsets[f] for f in group], width, interpolated))
        places += group
    value = found[0] if len(found) == 1 else rows.graph.op("Concat", *found, axis=1)
    return value, places


def _group(rows: Rows, table: Part, ids: str, offsets: list[int], width: int, interpolated: bool) -> str:
    """Fields with the same kind of lookup: ids (n, G * width) -> (n, G, D)."""
    graph = rows.graph
    kind: Any = np.int32 if len(table.arrays["weight"]) < 2**31 else np.int64
    if width == 1:
        asked = ids if kind is np.int32 else graph.op("Cast", ids, to=7)
        return rows.looked_up(table, graph.op("Add", asked, np.array(offsets, dtype=kind)))
    asked, shares = members(graph, graph.reshape(ids, [-1, len(offsets), width]), interpolated)
    asked = asked if kind is np.int32 else graph.op("Cast", asked, to=7)
    found = rows.looked_up(table, graph.op("Add", asked, np.array(offsets, dtype=kind)[:, None]))
    return graph.sum(graph.op("Mul", found, graph.op("Unsqueeze", shares, [3])), [2])


def members(graph: Graph, ids: str, interpolated: bool, kind: Any = np.int32) -> tuple[str, str]:
    """Ids (n, G, width), unused ones -1 -> ids to look up (n, G, m), and their weights in the mean (n, G, m).

    As Run.members of nn/embedding.py.
    """
    first = graph.op("Slice", ids, [0], [1], [2])
    if interpolated:
        upper = graph.mean(graph.op("Cast", graph.op("Greater", ids, first), to=1), [2])
        last = graph.op("Max", first, graph.op("Slice", ids, [-1], [2**31 - 1], [2]))
        lower = graph.op("Sub", 1.0, upper)
        return graph.op("Concat", first, last, axis=2), graph.op("Concat", lower, upper, axis=2)
    present = graph.op("GreaterOrEqual", ids, np.array(0, dtype=kind))
    counted = graph.op("Cast", present, to=1)
    shares = graph.op("Div", counted, graph.sum(counted, [2], keep=True))
    return graph.op("Where", present, ids, first), shares


def pair_places(layout: Layout) -> list[tuple[int, int]]:
    """The pairs of fields in their order."""
    return list(itertools.combinations(range(layout.fields), 2))


def pair_weights(rows: Rows, part: Part, ids: Ids, pairs: Sequence[int]) -> str:
    """Poly-2's weights (n, G) of some pairs of fields (PairTable of nn/crosses.py)."""
    graph, layout, buckets = rows.graph, ids.layout, part["buckets"]
    fields = pair_places(layout)
    full = [layout.sizes[i] * layout.sizes[j] for i, j in fields]
    offsets = np.array([0, *itertools.accumulate(min(size, buckets) for size in full)], dtype=np.int64)
    alike: dict[tuple[int, bool], list[int]] = {}
    for pair in pairs:
        i, j = fields[pair]
        alike.setdefault((layout.widths[i] * layout.widths[j], full[pair] > buckets), []).append(pair)
    found, order = [], []
    for (width, hashed), group in alike.items():
        own = _pair_ids(graph, ids, [fields[pair] for pair in group], buckets if hashed else 0)
        found.append(_pair_group(rows, part.parts[0], own, offsets[group], width))
        order += group
    value = found[0] if len(found) == 1 else graph.op("Concat", *found, axis=1)
    return value if order == list(pairs) else graph.take(value, [order.index(pair) for pair in pairs], 1)


def _pair_group(rows: Rows, table: Part, ids: str, offsets: NDArray[np.int64], width: int) -> str:
    """Pairs with the same number of members: ids (n, G * width) -> their mean weights (n, G)."""
    graph = rows.graph
    if width == 1:
        return graph.op("Squeeze", rows.looked_up(table, graph.op("Add", ids, offsets)), [2])
    asked, shares = members(graph, graph.reshape(ids, [-1, len(offsets), width]), False, np.int64)
    weights = graph.op("Squeeze", rows.looked_up(table, graph.op("Add", asked, offsets[:, None])), [3])
    return graph.sum(graph.op("Mul", weights, shares), [2])


def _pair_ids(graph: Graph, ids: Ids, fields: Sequence[tuple[int, int]], buckets: int) -> str:
    """Places (n, C') in each pair's weights, every member of one field with every one of the other; -1 means none."""
    columns = [
        (one, other, ids.layout.sizes[j]) for i, j in fields for one in ids.columns([i]) for other in ids.columns([j])
    ]
    first, second, strides = (np.array(each, dtype=np.int64) for each in zip(*columns, strict=True))
    one, other = (graph.op("Cast", graph.take(ids.value, each, 1), to=7) for each in (first, second))
    places = graph.op("Add", graph.op("Mul", one, np.array(HASHED_STRIDE) if buckets else strides), other)
    if buckets:
        places = graph.op("Mod", mixed(graph, places), buckets)
    if all(ids.layout.widths[field] == 1 for pair in fields for field in pair):
        return places
    unused = graph.op("Less", graph.op("Min", one, other), 0)
    return graph.op("Where", unused, -1, places)


def mixed(graph: Graph, value: str) -> str:
    """As `mixed` of nn/crosses.py: int64 overflow wraps, and BitShift takes unsigned numbers only."""
    value = graph.op("Add", value, np.array(GOLDEN - 2**64))
    for places, factor in ((30, FIRST_MIX), (27, SECOND_MIX), (31, 0)):
        moved = graph.op(
            "BitShift", graph.op("Cast", value, to=13), np.array(places, dtype=np.uint64), direction="RIGHT"
        )
        value = graph.op("BitwiseXor", value, graph.op("Cast", moved, to=7))
        value = graph.op("Mul", value, np.array(factor - 2**64)) if factor else value
    return graph.op("BitwiseAnd", value, np.array(2**63 - 1))
