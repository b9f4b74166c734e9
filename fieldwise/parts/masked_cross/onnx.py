"""FCN's crosses, as a graph of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, norm
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole


def masked_cross(part: Part, graph: Graph, v: str) -> str:
    split = graph.reshape(v, [0, part["fields"], part["heads"], 2, -1])
    x = first = graph.reshape(graph.op("Transpose", split, perm=[0, 2, 3, 1, 4]), [0, part["heads"], -1])
    for number, bias in enumerate(part.arrays.values()):
        layer, normed = part.parts[2 * number : 2 * number + 2]
        h = affine(graph, layer, x)
        masked = graph.op("Mul", h, graph.op("Relu", norm(graph, normed, h)))
        crossed = graph.op("Add", graph.op("Concat", h, masked, axis=2), bias)
        x = graph.op("Add", graph.op("Mul", x if part["exponential"] else first, crossed), x)
    return graph.op("Squeeze", graph.mean(x, [1]), [1])


FORMS = {"masked_cross": whole(masked_cross)}
