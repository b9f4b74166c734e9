"""AFM's attention over all pairs, as a graph on two sides."""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.features import ONE, Block
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides
from fieldwise.parts.forms import Form


def attention(part: Part, sides: Sides) -> list[Block]:
    """The sum of the pairs' terms, weighted by the softmax over all blocks."""
    terms, shares = _terms(part, sides)
    graph = sides.graph
    parts = [graph.sum(graph.op("Mul", *each), [1], keep=True) for each in zip(terms, shares, strict=True)]
    return [Block(graph.total(parts), ONE, False)]


def summands(part: Part, sides: Sides) -> list[Block]:
    """What each pair adds to the sum, for whole rows."""
    (terms,), (shares,) = _terms(part, sides)
    return [Block(sides.graph.op("Mul", terms, shares), sides.rows.pairs(sides.fields).numbers, False)]


def _terms(part: Part, sides: Sides) -> tuple[list[str], list[str]]:
    """p^T (v_i * v_j) of each pair and its attention weight, (n, P) in each block."""
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


FORMS = {"attention": Form(attention, summands=summands)}
