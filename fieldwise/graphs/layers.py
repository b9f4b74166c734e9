"""Layers inside of parts that need whole rows: flattened vectors, fully connected layers, norms, slices."""

from __future__ import annotations

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part


def flat(graph: Graph, part: Part, v: str) -> str:
    """The vectors (B, F, D) of a part with a Flatten inside, side by side: (B, sum of sizes)."""
    x = graph.reshape(v, [0, -1])
    return graph.take(x, part.arrays["places"], 1) if "places" in part.arrays else x


def affine(graph: Graph, layer: Part, x: str) -> str:
    """x W + b, or x W: (..., width) -> (..., out)."""
    x = graph.op("MatMul", x, layer.arrays["weight"])
    return graph.op("Add", x, layer.arrays["bias"]) if "bias" in layer.arrays else x


def norm(graph: Graph, layer: Part, x: str) -> str:
    """A layer norm over the last axis, batch norm as the affine map that it is by then, or none."""
    if layer.kind == "no_norm":
        return x
    gain, shift = layer.arrays["gain"], layer.arrays["shift"]
    if layer.kind == "batch_norm":
        return graph.op("Add", graph.op("Mul", x, gain), shift)
    return graph.op("LayerNormalization", x, gain, shift, axis=-1, epsilon=layer["epsilon"])


def cut(graph: Graph, x: str, start: int, end: int, axis: int = 1) -> str:
    """x[start:end] along an axis."""
    return graph.op("Slice", x, [start], [end], [axis])
