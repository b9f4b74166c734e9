"""EDCN's crosses, layers and bridges, as a graph of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, flat, norm
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole


def bridge(part: Part, graph: Graph, v: str) -> str:
    m, first, c, d = flat(graph, part, v), "", "", ""
    for block in part.parts:
        cross, layer, *norms = block.parts
        into = zip(norms, block.arrays["shares"], strict=True)
        c, d = (norm(graph, normed, graph.op("Mul", m, shares)) for normed, shares in into)
        first = first or c
        crossed = graph.op("Mul", first, affine(graph, cross, c))
        c = graph.op("Add", graph.op("Add", crossed, block.arrays["bias"]), c)
        d = graph.op("Relu", affine(graph, layer, d))
        m = graph.op("Mul" if part["bridge"] == "product" else "Add", c, d)
    return graph.op("Concat", c, d, m, axis=1)


FORMS = {"bridge": whole(bridge)}
