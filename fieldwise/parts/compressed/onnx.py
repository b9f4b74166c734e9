"""xDeepFM's compressed interactions, as a graph of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole


def compressed(part: Part, graph: Graph, v: str) -> str:
    x = first = graph.op("Transpose", v, perm=[0, 2, 1])
    pooled = []
    for layer in part.parts:
        products = graph.op("Mul", graph.op("Unsqueeze", first, [3]), graph.op("Unsqueeze", x, [2]))
        x = affine(graph, layer, graph.reshape(products, [0, 0, -1]))
        pooled.append(graph.sum(x, [1]))
    return graph.op("Concat", *pooled, axis=1)


FORMS = {"compressed": whole(compressed)}
