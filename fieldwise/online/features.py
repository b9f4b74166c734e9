"""Features of two sides, and what reads them: a sum, a norm, a DNN.

A block of features is of the context, one row for all, or of the rows. The first layer of a DNN is a sum over blocks, so
that what it makes of the context's is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fieldwise.online.graph import Graph
from fieldwise.online.parts import Part


@dataclass(frozen=True)
class Block:
    """Features (n, h) with their places among all: n is 1 if `shared`.

    With a `scale` and an `offset` (B, 1) they stand for gain * (value * scale + offset) + shift: a norm, whose
    statistics are each row's own, on values that all rows share.
    """

    value: str
    columns: NDArray[np.int64]
    shared: bool
    scale: str = ""
    offset: str = ""
    gain: NDArray[np.float32] | None = None
    shift: NDArray[np.float32] | None = None

    def moved(self, by: int) -> Block:
        return replace(self, columns=self.columns + by)


def normed(graph: Graph, blocks: list[Block], gain: NDArray[np.float32], shift: NDArray[np.float32], epsilon: float) -> list[Block]:
    """Layer norm over the features of all blocks (section 4.4)."""
    if len(blocks) == 1 and not blocks[0].scale:
        (block,) = blocks
        own = gain[block.columns], shift[block.columns]
        return [replace(block, value=graph.op("LayerNormalization", block.value, *own, axis=-1, epsilon=epsilon))]
    mean, inverse, centred = statistics(graph, [(b.value, len(b.columns)) for b in blocks], [1], epsilon)
    found = []
    for block, (value, own_mean) in zip(blocks, centred, strict=True):
        away = graph.op("Mul", graph.op("Sub", own_mean, mean), inverse)
        gains, shifts = gain[block.columns], shift[block.columns]
        if block.shared:
            found.append(replace(block, value=value, scale=inverse, offset=away, gain=gains, shift=shifts))
        else:
            normal = graph.op("Add", graph.op("Mul", value, inverse), away)
            found.append(replace(block, value=graph.op("Add", graph.op("Mul", normal, gains), shifts)))
    return found


def statistics(
    graph: Graph, values: list[tuple[str, int]], axes: list[int], epsilon: float
) -> tuple[str, str, list[tuple[str, str]]]:
    """Mean and 1/deviation of each row over several values with so many numbers a row, and each value less its own
    mean, with that mean. Parts are put together by Chan's formula, which loses nothing where means are large."""
    count = sum(size for _, size in values)
    centred = []
    for value, _ in values:
        mean = graph.mean(value, axes)
        centred.append((graph.op("Sub", value, mean), mean))
    sizes = [size for _, size in values]
    weighted = [graph.op("Mul", mean, size / count) for (_, mean), size in zip(centred, sizes, strict=True)]
    mean = graph.total(weighted)
    squares = []
    for (value, own), size in zip(centred, sizes, strict=True):
        within = graph.op("Mul", graph.op("ReduceSumSquare", value, axes, keepdims=1), 1 / count)
        away = graph.op("Sub", own, mean)
        squares += [within, graph.op("Mul", graph.op("Mul", away, away), size / count)]
    deviation = graph.op("Sqrt", graph.op("Add", graph.total(squares), epsilon))
    return mean, graph.op("Reciprocal", deviation), centred


def summed(graph: Graph, blocks: list[Block]) -> str:
    """The sum of all features, (n,)."""
    return graph.total([graph.sum(block.value, [1]) for block in blocks])


def dnn(graph: Graph, part: Part, blocks: list[Block]) -> str:
    """Fully connected layers, (n,)."""
    first, *others = part.parts
    x = _after(graph, part, first, _first_layer(graph, first, blocks))
    for layer in others:
        x = _after(graph, part, layer, graph.op("Gemm", x, layer.arrays["weight"], layer.arrays["bias"]))
    return graph.op("Squeeze", x, [1])


def _after(graph: Graph, part: Part, layer: Part, x: str) -> str:
    if layer["norm"]:
        x = graph.op("LayerNormalization", x, layer.arrays["gain"], layer.arrays["shift"], axis=-1, epsilon=part["epsilon"])
    return graph.op(layer["activation"], x) if layer["activation"] else x


def _first_layer(graph: Graph, layer: Part, blocks: list[Block]) -> str:
    """Each block by its own rows of the weights: what the context's give is one row."""
    weight, bias = layer.arrays["weight"], layer.arrays["bias"].astype(np.float64)
    found, rows = [], []
    for block in blocks:
        own = weight[block.columns]
        if block.scale:
            assert block.gain is not None and block.shift is not None
            bias = bias + block.shift.astype(np.float64) @ own
            own = own * block.gain[:, None]
            rows.append(graph.op("Mul", graph.op("MatMul", block.value, own), block.scale))
            rows.append(graph.op("Mul", block.offset, own.sum(axis=0, keepdims=True)))
        else:
            (found if block.shared else rows).append(graph.op("MatMul", block.value, own))
    constant = bias.astype(np.float32)
    shared = graph.op("Add", graph.total(found), constant) if found else graph.constant(constant)
    return graph.total([*rows, shared])
