"""AutoInt's attention, as a graph of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole


def self_attention(part: Part, graph: Graph, v: str) -> str:
    for layer in part.parts:
        v = _attend(layer, graph, v)
    return graph.reshape(v, [0, -1])


def _attend(layer: Part, graph: Graph, x: str) -> str:
    split = [0, 0, layer["heads"], -1]
    q, k, v = (graph.reshape(affine(graph, each, x), split) for each in layer.parts[:3])
    q, v = (graph.op("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
    products = graph.op("MatMul", graph.op("Mul", q, layer["factor"]), graph.op("Transpose", k, perm=[0, 2, 3, 1]))
    found = graph.op("MatMul", graph.op("Softmax", products, axis=3), v)
    found = graph.reshape(graph.op("Transpose", found, perm=[0, 2, 1, 3]), [0, 0, -1])
    residual = affine(graph, layer.parts[3], x) if len(layer.parts) > 3 else x
    return graph.op("Relu", graph.op("Add", found, residual))


FORMS = {"self_attention": whole(self_attention)}
