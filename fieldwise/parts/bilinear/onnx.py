"""FiBiNET's parts, as graphs of whole rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from fieldwise.graphs.features import Block
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Side, Sides
from fieldwise.parts.forms import Form, features, whole
from fieldwise.parts.gate.onnx import gate


def bilinear(part: Part, graph: Graph, v: str) -> str:
    weight = part.arrays["weight"]
    # As many pairs as the width has vectors of the matrices' size.
    pairs, fields = part["width"] // weight.shape[1], 2
    while fields * (fields - 1) // 2 < pairs:
        fields += 1
    first, second = (list(places) for places in zip(*combinations(range(fields), 2), strict=True))
    by_field = graph.op("Transpose", v, perm=[1, 0, 2])
    projected = graph.op("MatMul", graph.take(by_field, first, 0), weight[first] if part["of"] == "each" else weight)
    products = graph.op("Mul", projected, graph.take(by_field, second, 0))
    return graph.reshape(graph.op("Transpose", products, perm=[1, 0, 2]), [0, -1])


def squeezed(part: Part, sides: Sides) -> list[Block]:
    graph, (gated, inside) = sides.graph, part.parts
    v = sides.joined()
    factors = gate(graph, gated, graph.op("Squeeze", graph.mean(v, [2]), [2]))
    weighted = graph.op("Mul", v, graph.op("Unsqueeze", factors, [2]))
    rows = Side(graph, weighted, tuple(range(sides.fields)), False)
    return features(inside, replace(sides, rows=rows, context=None))


FORMS = {"bilinear": whole(bilinear), "squeezed": Form(squeezed, whole=True)}
