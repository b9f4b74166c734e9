"""Inner products of all pairs, as a graph on two sides."""

from __future__ import annotations

from fieldwise.graphs.features import Block
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides
from fieldwise.parts.forms import Form


def inner(part: Part, sides: Sides) -> list[Block]:
    graph, blocks = sides.graph, []
    for side, pairs in sides.inside:
        products = graph.op("MatMul", side.vectors, graph.op("Transpose", side.vectors, perm=[0, 2, 1]))
        places = pairs.first * len(side.fields) + pairs.second
        blocks.append(Block(graph.take(graph.reshape(products, [0, -1]), places, 1), pairs.numbers, side.shared))
    if sides.context is not None:
        turned = graph.op("Squeeze", graph.op("Transpose", sides.context.vectors, perm=[0, 2, 1]), [0])
        products = graph.op("MatMul", sides.rows.vectors, turned)
        blocks.append(Block(graph.reshape(products, [0, -1]), sides.between.numbers.ravel(), False))
    return blocks


FORMS = {"inner": Form(inner)}
