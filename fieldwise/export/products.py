"""Vectors of two sides -> blocks of features, as graphs: each interaction of parts/interactions.py.

Pairs within the context are computed once; pairs between a candidate's field and the context's use what the context's
field makes of the pair's weights, computed once too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fieldwise.graphs.features import Block, Norm, normed
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.lookups import Ids, pair_weights
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Side, Sides, Whole, flat_places
from fieldwise.parts.micro.onnx import micro

ONE = np.zeros(1, dtype=np.int64)
# Interactions that look at all fields at once: every row of a ranking goes through the whole of them.
WHOLE = ("convolution",)


def features(part: Part, sides: Sides) -> list[Block]:
    """The blocks of an interaction's features."""
    return INTERACTIONS[part.kind](part, sides)


def _flatten(part: Part, sides: Sides) -> list[Block]:
    graph, blocks = sides.graph, []
    for side in sides.all:
        kept, columns = flat_places(part.arrays.get("places"), side.fields, sides.dim)
        value = graph.reshape(side.vectors, [0, -1])
        whole = len(kept) == len(side.fields) * sides.dim
        blocks.append(Block(value if whole else graph.take(value, kept, 1), columns, side.shared))
    return blocks


def _concat(part: Part, sides: Sides) -> list[Block]:
    starts = np.cumsum([0, *part["widths"]])
    return [
        block.moved(int(start))
        for each, start in zip(part.parts, starts, strict=False)
        for block in features(each, sides)
    ]


def _normed(part: Part, sides: Sides) -> list[Block]:
    blocks = features(part.parts[0], sides)
    return normed(sides.graph, blocks, Norm(part.arrays["gain"], part.arrays["shift"], part["epsilon"]))


def _pair_sum(part: Part, sides: Sides) -> list[Block]:
    """0.5 * sum over d of (sum v)^2 - sum v^2, the sums of both sides added."""
    graph = sides.graph
    sums = [graph.sum(side.vectors, [1]) for side in sides.all]
    squares = [graph.op("ReduceSumSquare", side.vectors, [1], keepdims=0) for side in sides.all]
    total = graph.total(sums)
    difference = graph.op("Sub", graph.op("Mul", total, total), graph.total(squares))
    return [Block(graph.op("Mul", graph.sum(difference, [1], keep=True), 0.5), ONE, False)]


def _inner(part: Part, sides: Sides) -> list[Block]:
    graph, blocks = sides.graph, []
    for side, pairs in sides.inside:
        products = graph.op("MatMul", side.vectors, graph.op("Transpose", side.vectors, perm=[0, 2, 1]))
        places = pairs.first * len(side.fields) + pairs.second
        blocks.append(Block(graph.take(graph.reshape(products, [0, -1]), places, 1), pairs.numbers, side.shared))
    if sides.context is not None:
        turned = graph.op("Squeeze", graph.op("Transpose", sides.context.vectors, perm=[0, 2, 1]), [0])
        products = graph.op("MatMul", sides.rows.vectors, turned)
        blocks.append(Block(graph.reshape(products, [0, -1]), sides.between.numbers.ravel(), False))
    return blocks


def _kernel(part: Part, sides: Sides) -> list[Block]:
    graph, kernel, matrix = sides.graph, part.arrays["kernel"], part["of"] == "mat"
    blocks = []
    for side, pairs in sides.inside:
        p, q = (graph.take(side.by_field, places, 0) for places in (pairs.first, pairs.second))
        projected = graph.op("MatMul" if matrix else "Mul", p, kernel[pairs.numbers])
        products = graph.sum(graph.op("Mul", projected, q), [2])
        blocks.append(Block(graph.op("Transpose", products, perm=[1, 0]), pairs.numbers, side.shared))
    if sides.context is not None:
        between = sides.between
        own = kernel[between.numbers]
        if matrix:
            own = np.where(between.context_first[:, :, None, None], own, own.swapaxes(2, 3))
        context = graph.reshape(sides.context.vectors, [1, len(sides.context.fields), 1, -1])
        # The vector (Fa, Fc, 1, D) that each field of the context makes of each pair's kernel.
        made = graph.op("Squeeze", graph.op("MatMul" if matrix else "Mul", context, own), [2])
        products = graph.op("MatMul", sides.rows.by_field, graph.op("Transpose", made, perm=[0, 2, 1]))
        value = graph.reshape(graph.op("Transpose", products, perm=[1, 0, 2]), [0, -1])
        blocks.append(Block(value, between.numbers.ravel(), False))
    return blocks


def _kernel_sum(part: Part, sides: Sides) -> list[Block]:
    graph = sides.graph
    return [Block(graph.total([graph.sum(each.value, [1], keep=True) for each in _kernel(part, sides)]), ONE, False)]


def _field_aware(part: Part, sides: Sides) -> list[Block]:
    blocks = []
    for side, pairs in sides.inside:
        fields = np.array(side.fields)
        p = _own_parts(part, sides, side, pairs.first, fields[pairs.second])
        q = _own_parts(part, sides, side, pairs.second, fields[pairs.first])
        blocks.append(Block(_scaled_products(sides.graph, p, q, part["scale"]), pairs.numbers, side.shared))
    if sides.context is not None:
        rows, context = np.array(sides.rows.fields), np.array(sides.context.fields)
        mine, theirs = (places.ravel() for places in np.indices((len(rows), len(context))))
        p = _own_parts(part, sides, sides.rows, mine, context[theirs])
        q = _own_parts(part, sides, sides.context, theirs, rows[mine])
        numbers = sides.between.numbers.ravel()
        blocks.append(Block(_scaled_products(sides.graph, p, q, part["scale"]), numbers, False))
    return blocks


def _own_parts(part: Part, sides: Sides, side: Side, places: Whole, others: Whole) -> str:
    """The part (n, P, k) of each of the side's fields at these places for the other field of its pair."""
    fields = np.array(side.fields)[places]
    number = np.where(others > fields, others - 1, others)
    cut = sides.graph.reshape(side.vectors, [0, len(side.fields) * (sides.fields - 1), part["dim"]])
    return sides.graph.take(cut, places * (sides.fields - 1) + number, 1)


def _scaled_products(graph: Graph, p: str, q: str, scale: float) -> str:
    products = graph.sum(graph.op("Mul", p, q), [2])
    return products if scale == 1 else graph.op("Mul", products, float(scale))


def _pair_weights(part: Part, sides: Sides) -> list[Block]:
    """Poly-2's weights: of the context's pairs once, of all others in every row."""
    tables = sides.pair_tables
    assert tables is not None
    everything = np.arange(sides.fields * (sides.fields - 1) // 2)
    if sides.context is None:
        return [Block(pair_weights(tables.looked, tables.table, tables.ids[-1], list(everything)), everything, False)]
    context = sides.context.pairs(sides.fields).numbers
    others = np.setdiff1d(everything, context)
    joined = Ids.joined(sides.graph, *tables.ids)
    blocks = [Block(pair_weights(tables.looked, tables.table, joined, list(others)), others, False)]
    if len(context):
        own = pair_weights(tables.looked, tables.table, tables.ids[0], list(context))
        blocks.append(Block(own, context, True))
    return blocks


def _attention(part: Part, sides: Sides) -> list[Block]:
    """The pairs' terms by their shares of the softmax over all blocks."""
    terms, shares = attention_terms(part, sides)
    graph = sides.graph
    parts = [graph.sum(graph.op("Mul", *each), [1], keep=True) for each in zip(terms, shares, strict=True)]
    return [Block(graph.total(parts), ONE, False)]


def attention_terms(part: Part, sides: Sides) -> tuple[list[str], list[str]]:
    """p^T (v_i * v_j) of each pair and its share, (n, P) in each block."""
    graph, arrays = sides.graph, part.arrays
    products = []
    for side, pairs in sides.inside:
        p, q = (graph.take(side.vectors, places, 1) for places in (pairs.first, pairs.second))
        products.append(graph.op("Mul", p, q))
    if sides.context is not None:
        rows, context = (
            graph.op("Unsqueeze", sides.rows.vectors, [2]),
            graph.op("Unsqueeze", sides.context.vectors, [1]),
        )
        size = len(sides.rows.fields) * len(sides.context.fields)
        products.append(graph.reshape(graph.op("Mul", rows, context), [0, size, len(arrays["projection"])]))
    terms = [graph.op("Squeeze", graph.op("MatMul", each, arrays["projection"][:, None]), [2]) for each in products]
    hidden = [graph.op("Add", graph.op("MatMul", each, arrays["weight"]), arrays["bias"]) for each in products]
    score = (arrays["score"] / part["temperature"]).astype(np.float32)[:, None]
    scores = [graph.op("Squeeze", graph.op("MatMul", graph.op("Relu", each), score), [2]) for each in hidden]
    largest = [graph.op("ReduceMax", each, [1], keepdims=1) for each in scores]
    top = largest[0] if len(largest) == 1 else graph.op("Max", *largest)
    raised = [graph.op("Exp", graph.op("Sub", each, top)) for each in scores]
    total = graph.total([graph.sum(each, [1], keep=True) for each in raised])
    return terms, [graph.op("Div", each, total) for each in raised]


def _convolution(part: Part, sides: Sides) -> list[Block]:
    graph = sides.graph
    x = graph.op("Transpose", sides.joined(), perm=[0, 2, 1])
    length, channels = sides.fields, 0
    for kept, weight in zip(part["keep"], part.arrays.values(), strict=True):
        x = graph.op("Conv", x, weight)
        length, channels = length - weight.shape[2] + 1, weight.shape[0]
        if kept == 1:
            x, length = graph.op("ReduceMax", x, [2], keepdims=1), 1
        elif kept < length:
            places = graph.pair("TopK", x, [kept], axis=2)[1]
            # The smallest of all of them are all of them, in rising order.
            places = graph.pair("TopK", places, [kept], axis=2, largest=0)[0]
            x, length = graph.op("GatherElements", x, places, axis=2), kept
        x = graph.op("Relu", x)
    return [Block(graph.reshape(x, [0, -1]), np.arange(channels * length), False)]


INTERACTIONS: dict[str, Callable[[Part, Sides], list[Block]]] = {
    "flatten": _flatten,
    "concat": _concat,
    "normed": _normed,
    "pair_sum": _pair_sum,
    "inner": _inner,
    "kernel": _kernel,
    "kernel_sum": _kernel_sum,
    "field_aware": _field_aware,
    "pair_weights": _pair_weights,
    "micro": micro,
    "attention": _attention,
    "convolution": _convolution,
}
