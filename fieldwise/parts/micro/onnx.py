"""A micro network for each pair (NIFM, PIN), as a graph on two sides.

A fused norm has statistics over all pairs of a row, so that after the first layer even pairs within the context
differ from row to row. The first layer, nearly all of the work, is computed once for them, and graphs/context_norm.py
saves most of the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.graphs.context_norm import RowNorm, next_layer
from fieldwise.graphs.features import Block, Moments, Norm, normed, together
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Side, Sides, Whole
from fieldwise.parts.forms import Form


@dataclass(frozen=True)
class Units:
    """Units (P, n, H) of some pairs, n being 1 if `shared`; they stand for value * gain * scale + bias.

    `scale` (B, 1) and `bias` (P, 1, H) are applied later, when there are fewer units, and gains go into the next
    layer's weights. If `flat`, the value is (n, P * H) already.
    """

    value: str
    pairs: Whole
    shared: bool
    scale: str = ""
    gain: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    flat: bool = False


def micro(part: Part, sides: Sides) -> list[Block]:
    """Blocks of features (n, P * H)."""
    graph, layers = sides.graph, part.parts
    units = _first(part, sides)
    for layer, following in itertools.pairwise(layers):
        settled = [_settled(graph, each) for each in units]
        if following is layers[-1] and layer["norm"] == "fused" and sides.one_thread:
            units = _fused_and_last(graph, part, layer, following, settled)
        else:
            units = [_multiplied(graph, following, each) for each in _activated(graph, part, layer, settled)]
    return _last(graph, part, layers[-1], units)


def _first(part: Part, sides: Sides) -> list[Units]:
    """The first layer: pairs within a side, and pairs between sides with weights that hold the context's vectors."""
    graph, layer, units = sides.graph, part.parts[0], []
    for side, pairs in sides.inside:
        p, q = (graph.take(side.by_field, places, 0) for places in (pairs.first, pairs.second))
        product = [graph.op("Mul", p, q)] if part["product"] else []
        one = graph.take(_ones(side), np.zeros(len(pairs.numbers), dtype=np.int64), 0)
        # The bias as one more row of the weights saves a pass over all units.
        weight = np.concatenate([layer.arrays["weight"], layer.arrays["bias"]], axis=1)[pairs.numbers]
        value = graph.op("MatMul", graph.op("Concat", p, q, *product, one, axis=2), weight)
        units.append(Units(value, pairs.numbers, side.shared))
    if sides.context is not None:
        units.append(_between(part, sides, sides.context))
    return units


def _ones(side: Side) -> str:
    """(1, n, 1)"""
    like = side.graph.op("Slice", side.by_field, [0, 0], [1, 1], [0, 2])
    return side.graph.op("Add", side.graph.op("Mul", like, 0.0), 1.0)


def _between(part: Part, sides: Sides, context: Side) -> Units:
    """x = v W + c; W = W_rows + diag(v_context) W_product and c = v_context W_context + b, once for a request."""
    graph, layer, between = sides.graph, part.parts[0], sides.between
    weight, bias = layer.arrays["weight"][between.numbers], layer.arrays["bias"][between.numbers]
    one, other, *product = np.split(weight, 3 if part["product"] else 2, axis=2)
    context_first = between.context_first[:, :, None, None]
    own, theirs = np.where(context_first, other, one), np.where(context_first, one, other)
    fields = len(context.fields)
    constant = graph.op("MatMul", graph.reshape(context.vectors, [1, fields, 1, -1]), theirs)
    made: str | NDArray[Any] = own
    if product:
        made = graph.op("Add", graph.op("Mul", graph.reshape(context.vectors, [1, fields, -1, 1]), product[0]), own)
    weights = graph.op("Concat", made, graph.op("Add", constant, bias), axis=2)
    ones = graph.take(_ones(sides.rows), np.zeros(len(sides.rows.fields), dtype=np.int64), 0)
    rows = graph.op("Unsqueeze", graph.op("Concat", sides.rows.by_field, ones, axis=2), [1])
    value = graph.reshape(graph.op("MatMul", rows, weights), [between.numbers.size, -1, weight.shape[3]])
    return Units(value, between.numbers.ravel(), False)


def _multiplied(graph: Graph, layer: Part, units: Units) -> Units:
    """The units times a layer's weights; scale and bias are left for later."""
    weight = layer.arrays["weight"][units.pairs]
    if units.gain is not None:
        weight = weight * units.gain.swapaxes(1, 2)
    return replace(
        units, value=graph.op("MatMul", units.value, weight), gain=None, bias=layer.arrays["bias"][units.pairs]
    )


def _settled(graph: Graph, units: Units) -> Units:
    """The same units with scale and bias applied."""
    value = graph.op("Mul", units.value, graph.op("Unsqueeze", units.scale, [0])) if units.scale else units.value
    value = value if units.bias is None else graph.op("Add", value, units.bias)
    return Units(value, units.pairs, units.shared)


def _own(values: NDArray[Any], pairs: Whole) -> NDArray[Any]:
    """The gains or shifts of some pairs, or the ones that all pairs share."""
    return values if len(values) == 1 else values[pairs]


def _activated(graph: Graph, part: Part, layer: Part, units: list[Units]) -> list[Units]:
    """Norm and ReLU of a hidden layer."""
    if layer["norm"] == "none":
        return [replace(each, value=graph.op("Relu", each.value)) for each in units]
    if layer["norm"] == "layer":
        return [replace(each, value=graph.op("Relu", _alone(graph, part, layer, each))) for each in units]
    mean, deviation = _statistics(graph, part, layer, units)
    return [_fused(graph, layer, each, mean, deviation) for each in units]


def _fused_and_last(graph: Graph, part: Part, layer: Part, last: Part, units: list[Units]) -> list[Units]:
    """As _activated and _multiplied, without computing the context's units for every row."""
    mean, deviation = _statistics(graph, part, layer, units)
    found = []
    for each in units:
        gain, shift = (_own(layer.arrays[name], each.pairs) for name in ("gain", "shift"))
        if each.shared and gain.min() > SMALLEST_GAIN:
            weight = last.arrays["weight"][each.pairs] * gain.swapaxes(1, 2)
            value = next_layer(graph, each.value, RowNorm(mean, deviation, shift / gain), weight)
            scale, bias = graph.op("Reciprocal", deviation), last.arrays["bias"][each.pairs]
            found.append(Units(value, each.pairs, False, scale, None, bias, flat=True))
        else:
            found.append(_multiplied(graph, last, _fused(graph, layer, each, mean, deviation)))
    return found


def _statistics(graph: Graph, part: Part, layer: Part, units: list[Units]) -> tuple[str, str]:
    """The mean and the deviation (B, 1) of all units of a row."""
    width = layer.arrays["weight"].shape[2]
    return together(graph, [_moments(graph, each, width) for each in units], part["epsilon"])


def _moments(graph: Graph, units: Units, width: int) -> Moments:
    """Moments (n, 1) over pairs and units: over the units of each pair first, in the order of memory."""
    mean = graph.op("ReduceMean", units.value, [2], keepdims=0)
    squares = graph.op("ReduceSumSquare", units.value, [2], keepdims=0)
    within = graph.op("Sub", squares, graph.op("Mul", graph.op("Mul", mean, mean), float(width)))
    overall = graph.mean(mean, [0])
    away = graph.op("Sub", mean, overall)
    across = graph.op("Mul", graph.op("Mul", away, away), float(width))
    total = graph.sum(graph.op("Add", within, across), [0], keep=True)
    turned = [graph.op("Transpose", each, perm=[1, 0]) for each in (overall, total)]
    return Moments(len(units.pairs) * width, *turned)


def _fused(graph: Graph, layer: Part, units: Units, mean: str, deviation: str) -> Units:
    """relu(gain (x - m) / d + shift), which is gain / d relu(x - m + shift d / gain) where gains are positive."""
    gain, shift = (_own(layer.arrays[name], units.pairs) for name in ("gain", "shift"))
    if gain.min() > SMALLEST_GAIN:
        # (B, 1) and (P or 1, 1, H): rows and units, the same for all pairs unless each has its own shift.
        away = graph.op("Sub", graph.op("Mul", deviation, shift / gain), mean)
        value = graph.op("Relu", graph.op("Add", units.value, away))
        gains = np.broadcast_to(gain, (len(units.pairs), *gain.shape[1:]))
        return Units(value, units.pairs, False, graph.op("Reciprocal", deviation), gains)
    normal = graph.op("Div", graph.op("Sub", units.value, mean), deviation)
    normal = graph.op("Add", graph.op("Mul", normal, gain), shift)
    return Units(graph.op("Relu", normal), units.pairs, False)


# For smaller gains, shift / gain would be too large, next to the values, for float32.
SMALLEST_GAIN = 1e-3


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
        value = _alone(graph, part, layer, _settled(graph, each)) if layer["norm"] == "layer" else each.value
        flat = value if each.flat else graph.reshape(graph.op("Transpose", value, perm=[1, 0, 2]), [0, -1])
        if layer["norm"] != "layer":
            flat = graph.op("Mul", flat, each.scale) if each.scale else flat
            flat = flat if each.bias is None else graph.op("Add", flat, each.bias.ravel())
        columns = (each.pairs[:, None] * width + np.arange(width)).ravel()
        blocks.append(Block(flat, columns, each.shared))
    if layer["norm"] != "fused":
        return blocks
    gain, shift = (np.broadcast_to(layer.arrays[name], (pairs, 1, width)).ravel() for name in ("gain", "shift"))
    return normed(graph, blocks, Norm(gain, shift, part["epsilon"]))


FORMS = {"micro": Form(micro)}
