"""FM's second-order part, as a graph on two sides."""

from __future__ import annotations

from fieldwise.graphs.features import ONE, Block
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides
from fieldwise.parts.forms import Form
from fieldwise.parts.inner.onnx import inner


def pair_sum(part: Part, sides: Sides) -> list[Block]:
    """0.5 * sum over d of (sum v)^2 - sum v^2, the sums of both sides added."""
    graph = sides.graph
    sums = [graph.sum(side.vectors, [1]) for side in sides.all]
    squares = [graph.op("ReduceSumSquare", side.vectors, [1], keepdims=0) for side in sides.all]
    total = graph.total(sums)
    difference = graph.op("Sub", graph.op("Mul", total, total), graph.total(squares))
    return [Block(graph.op("Mul", graph.sum(difference, [1], keep=True), 0.5), ONE, False)]


FORMS = {"pair_sum": Form(pair_sum, summands=inner)}
