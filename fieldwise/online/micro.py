"""A micro network for each pair (NIFM, PIN), as a graph on two sides.

Where the norm is fused, its statistics are over all pairs of a row, so that behind the first layer even pairs of the
context alone are each row's own; the first layer, which is nearly all of the work, is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.online.features import Block, normed, statistics
from fieldwise.online.graph import Graph
from fieldwise.online.parts import Part
from fieldwise.online.sides import Sides, Whole


@dataclass(frozen=True)
class Units:
    """Units (P, n, H) of some pairs, n being 1 if `shared`."""

    value: str
    pairs: Whole
    shared: bool


def micro(part: Part, sides: Sides) -> list[Block]:
    """Blocks of features (n, P * H)."""
    graph, layers = sides.graph, part.parts
    units = _first(part, sides)
    for number, layer in enumerate(layers):
        if number:
            units = [_affine(graph, layer, each) for each in units]
        if number + 1 == len(layers):
            return _last(graph, part, layer, units)
        units = _activated(graph, part, layer, units)
    raise AssertionError("a micro network has at least one layer")


def _first(part: Part, sides: Sides) -> list[Units]:
    """The first layer: pairs of one side by themselves, pairs between the sides by what the context makes of them."""
    graph, layer, units = sides.graph, part.parts[0], []
    for side, pairs in sides.inside:
        p, q = (graph.take(side.by_field, places, 0) for places in (pairs.first, pairs.second))
        x = graph.op("Concat", *([p, q, graph.op("Mul", p, q)] if part["product"] else [p, q]), axis=2)
        found = graph.op("MatMul", x, layer.arrays["weight"][pairs.numbers])
        value = graph.op("Add", found, layer.arrays["bias"][pairs.numbers])
        units.append(Units(value, pairs.numbers, side.shared))
    if sides.context is not None:
        units.append(_between(part, sides))
    return units


def _between(part: Part, sides: Sides) -> Units:
    """x = v W + c, where W = W_rows + diag(v_context) W_product and c = v_context W_context + b are the request's."""
    graph, layer, between = sides.graph, part.parts[0], sides.between
    assert sides.context is not None
    weight, bias = layer.arrays["weight"][between.numbers], layer.arrays["bias"][between.numbers]
    one, other, *product = np.split(weight, 3 if part["product"] else 2, axis=2)
    context_first = between.context_first[:, :, None, None]
    own, theirs = np.where(context_first, other, one), np.where(context_first, one, other)
    fields = len(sides.context.fields)
    constant = graph.op("Add", graph.op("MatMul", graph.reshape(sides.context.vectors, [1, fields, 1, -1]), theirs), bias)
    made: str | NDArray[Any] = own
    if product:
        column = graph.reshape(sides.context.vectors, [1, fields, -1, 1])
        made = graph.op("Add", graph.op("Mul", column, product[0]), own)
    found = graph.op("MatMul", graph.op("Unsqueeze", sides.rows.by_field, [1]), made)
    value = graph.op("Add", found, constant)
    pairs = between.numbers.ravel()
    return Units(_merged(graph, value, len(pairs), layer.arrays["weight"].shape[2]), pairs, False)


def _merged(graph: Graph, value: str, pairs: int, width: int) -> str:
    """(Fa, Fc, n, H) -> (Fa * Fc, n, H)."""
    return graph.reshape(value, [pairs, -1, width])


def _affine(graph: Graph, layer: Part, units: Units) -> Units:
    found = graph.op("MatMul", units.value, layer.arrays["weight"][units.pairs])
    return replace(units, value=graph.op("Add", found, layer.arrays["bias"][units.pairs]))


def _own(values: NDArray[Any], pairs: Whole) -> NDArray[Any]:
    """The gains or shifts of some pairs, or those that all pairs have."""
    return values if len(values) == 1 else values[pairs]


def _activated(graph: Graph, part: Part, layer: Part, units: list[Units]) -> list[Units]:
    """Norm and ReLU of a hidden layer."""
    if layer["norm"] == "none":
        return [replace(each, value=graph.op("Relu", each.value)) for each in units]
    if layer["norm"] == "layer":
        return [replace(each, value=graph.op("Relu", _alone(graph, part, layer, each))) for each in units]
    width = layer.arrays["weight"].shape[2]
    mean, inverse, centred = statistics(graph, [(u.value, len(u.pairs) * width) for u in units], [0, 2], part["epsilon"])
    found = []
    for each, (value, own_mean) in zip(units, centred, strict=True):
        gain, shift = (_own(layer.arrays[name], each.pairs) for name in ("gain", "shift"))
        away = graph.op("Mul", graph.op("Sub", own_mean, mean), inverse)
        normal = graph.op("Add", graph.op("Mul", value, inverse), away)
        normal = graph.op("Add", graph.op("Mul", normal, gain), shift)
        found.append(Units(graph.op("Relu", normal), each.pairs, False))
    return found


def _alone(graph: Graph, part: Part, layer: Part, units: Units) -> str:
    """Each pair's own norm, gain and shift."""
    ones = np.ones(layer.arrays["weight"].shape[2], dtype=np.float32)
    normal = graph.op("LayerNormalization", units.value, ones, axis=-1, epsilon=part["epsilon"])
    gain, shift = (_own(layer.arrays[name], units.pairs) for name in ("gain", "shift"))
    return graph.op("Add", graph.op("Mul", normal, gain), shift)


def _last(graph: Graph, part: Part, layer: Part, units: list[Units]) -> list[Block]:
    """The last layer's units as features; a fused norm is then a norm of all features."""
    width, pairs = layer.arrays["weight"].shape[2], len(layer.arrays["weight"])
    blocks = []
    for each in units:
        value = _alone(graph, part, layer, each) if layer["norm"] == "layer" else each.value
        columns = (each.pairs[:, None] * width + np.arange(width)).ravel()
        flat = graph.reshape(graph.op("Transpose", value, perm=[1, 0, 2]), [0, -1])
        blocks.append(Block(flat, columns, each.shared))
    if layer["norm"] != "fused":
        return blocks
    gain, shift = (np.broadcast_to(layer.arrays[name], (pairs, 1, width)).ravel() for name in ("gain", "shift"))
    return normed(graph, blocks, gain, shift, part["epsilon"])
