"""Kernel products of all pairs, as a graph on two sides.

A context field's vector meets its pairs' kernels once, and all rows use the result.
"""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.features import ONE, Block
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides
from fieldwise.parts.forms import Form


def kernel_products(part: Part, sides: Sides) -> list[Block]:
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
        # The context field's vector times the kernel, for each pair: (Fa, Fc, 1, D).
        made = graph.op("Squeeze", graph.op("MatMul" if matrix else "Mul", context, own), [2])
        products = graph.op("MatMul", sides.rows.by_field, graph.op("Transpose", made, perm=[0, 2, 1]))
        value = graph.reshape(graph.op("Transpose", products, perm=[1, 0, 2]), [0, -1])
        blocks.append(Block(value, between.numbers.ravel(), False))
    return blocks


def kernel_sum(part: Part, sides: Sides) -> list[Block]:
    graph = sides.graph
    return [
        Block(graph.total([graph.sum(each.value, [1], keep=True) for each in kernel_products(part, sides)]), ONE, False)
    ]


FORMS = {"kernel": Form(kernel_products), "kernel_sum": Form(kernel_sum, summands=kernel_products)}
