"""Wukong's layers, as a graph of whole rows."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, norm
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole


def wukong(part: Part, graph: Graph, v: str) -> str:
    for layer in part.parts:
        v = _stacked(layer, graph, v)
    return graph.reshape(v, [0, -1])


def _stacked(part: Part, graph: Graph, x: str) -> str:
    before, mlp, keep, after, *residual = part.parts
    by_place = graph.op("Transpose", x, perm=[0, 2, 1])
    products = graph.op("MatMul", x, graph.op("MatMul", by_place, part.arrays["project"]))
    fm = norm(graph, before, graph.reshape(products, [0, -1]))
    for layer in mlp.parts[:-1]:
        fm = graph.op("Relu", affine(graph, layer, fm))
    fm = graph.reshape(affine(graph, mlp.parts[-1], fm), [0, part["made"], -1])
    kept = graph.op("Transpose", affine(graph, keep, by_place), perm=[0, 2, 1])
    both = graph.op("Concat", fm, kept, axis=1)
    back = graph.op("Transpose", affine(graph, residual[0], by_place), perm=[0, 2, 1]) if residual else x
    return norm(graph, after, graph.op("Add", both, back))


FORMS = {"wukong": whole(wukong)}
