"""The gate by the whole row, inside of other parts' graphs, and FinalMLP's gated vectors."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, flat
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole

ENDS = {"relu": "Relu", "sigmoid": "Sigmoid"}


def gate(graph: Graph, part: Part, x: str) -> str:
    *hidden, last = part.parts
    for layer in hidden:
        x = graph.op("Relu", affine(graph, layer, x))
    x = affine(graph, last, x)
    x = graph.op(ENDS[part["end"]], x) if part["end"] in ENDS else x
    return x if part["scale"] == 1 else graph.op("Mul", x, part["scale"])


def gated(part: Part, graph: Graph, v: str) -> str:
    x = flat(graph, part, v)
    context = graph.constant(part.arrays["context"]) if "context" in part.arrays else x
    return graph.op("Mul", x, gate(graph, part.parts[0], context))


FORMS = {"gated": whole(gated)}
