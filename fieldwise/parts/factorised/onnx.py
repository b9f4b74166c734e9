"""FinalNet's blocks, as a graph of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, cut, flat, norm
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole


def factorised(part: Part, graph: Graph, v: str) -> str:
    blocks = [each for each in part.parts if each.kind == "block"]
    if len(blocks) < len(part.parts):
        factors = affine(graph, part.parts[-1], graph.op("Transpose", v, perm=[0, 2, 1]))
        gated = graph.op("Mul", v, graph.op("Transpose", factors, perm=[0, 2, 1]))
        v = graph.op("Concat", v, gated, axis=1)
    x = flat(graph, part, v)
    for layer, normed in (block.parts for block in blocks):
        made, half = affine(graph, layer, x), layer.arrays["weight"].shape[1] // 2
        a, b = cut(graph, made, 0, half), cut(graph, made, half, 2 * half)
        both = graph.op("Mul", a, b)
        halves = graph.op("Concat", a, both, axis=1) if part["residual"] == "concat" else graph.op("Add", a, both)
        x = norm(graph, normed, halves)
    return x


FORMS = {"factorised": whole(factorised)}
