"""Crosses, as graphs of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, flat
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole
from fieldwise.parts.gate.onnx import gate


def cross(part: Part, graph: Graph, v: str) -> str:
    x = first = flat(graph, part, v)
    layers, gates = part.parts[: part["times"]], part.parts[part["times"] :]
    for number, layer in enumerate(layers):
        crossed = graph.op("Mul", first, affine(graph, layer, x))
        x = graph.op("Add", graph.op("Mul", crossed, gate(graph, gates[number], x)) if gates else crossed, x)
    return x


def cross_mixture(part: Part, graph: Graph, v: str) -> str:
    x = first = flat(graph, part, v)
    scores, *layers = part.parts
    for layer in layers:
        low = graph.op("Tanh", graph.op("MatMul", x, layer.arrays["down"]))
        low = graph.op("Tanh", graph.op("MatMul", low, layer.arrays["inside"]))
        shares = graph.op("Transpose", graph.op("Softmax", affine(graph, scores, x), axis=1), perm=[1, 0])
        weighted = graph.op("Mul", low, graph.op("Unsqueeze", shares, [2]))
        mixed = graph.sum(graph.op("MatMul", weighted, layer.arrays["up"]), [0])
        x = graph.op("Add", graph.op("Mul", first, graph.op("Add", mixed, layer.arrays["bias"])), x)
    return x


FORMS = {"cross": whole(cross), "cross_mixture": whole(cross_mixture)}
