"""FFM's products, as a graph on two sides."""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.features import Block
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Side, Sides, Whole
from fieldwise.parts.forms import Form


def field_aware(part: Part, sides: Sides) -> list[Block]:
    blocks = []
    for side, pairs in sides.inside:
        fields = np.array(side.fields)
        p = _own_parts(part, sides, side, pairs.first, fields[pairs.second])
        q = _own_parts(part, sides, side, pairs.second, fields[pairs.first])
        blocks.append(Block(_scaled_products(sides.graph, p, q, part["scale"]), pairs.numbers, side.shared))
    if sides.context is not None:
        rows, context = np.array(sides.rows.fields), np.array(sides.context.fields)
        mine, theirs = (places.ravel() for places in np.indices((len(rows), len(context))))
        p = _own_parts(part, sides, sides.rows, mine, context[theirs])
        q = _own_parts(part, sides, sides.context, theirs, rows[mine])
        numbers = sides.between.numbers.ravel()
        blocks.append(Block(_scaled_products(sides.graph, p, q, part["scale"]), numbers, False))
    return blocks


def _own_parts(part: Part, sides: Sides, side: Side, places: Whole, others: Whole) -> str:
    """The parts (n, P, k) of the side's fields at `places` for the other field of each pair."""
    fields = np.array(side.fields)[places]
    number = np.where(others > fields, others - 1, others)
    cut = sides.graph.reshape(side.vectors, [0, len(side.fields) * (sides.fields - 1), part["dim"]])
    return sides.graph.take(cut, places * (sides.fields - 1) + number, 1)


def _scaled_products(graph: Graph, p: str, q: str, scale: float) -> str:
    products = graph.sum(graph.op("Mul", p, q), [2])
    return products if scale == 1 else graph.op("Mul", products, float(scale))


FORMS = {"field_aware": Form(field_aware)}
