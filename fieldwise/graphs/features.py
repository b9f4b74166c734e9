"""Features of two sides, and the graphs that read them: a sum, a norm, a DNN, two of them.

A block of features belongs to the context, one row for all, or to the rows. The first layer of a DNN is a sum over
blocks, so that the context's part of it is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part

# The columns of a single feature.
ONE = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Block:
    """Features (n, h) and their columns among all features; n is 1 if `shared`.

    With `scale` and `offset` (B, 1) they stand for gain * (value * scale + offset) + shift: a norm with statistics of
    each row, on values that all rows share.
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


@dataclass(frozen=True)
class Norm:
    """A layer norm's weights over all features, and its epsilon."""

    gain: NDArray[np.float32]
    shift: NDArray[np.float32]
    epsilon: float


def normed(graph: Graph, blocks: list[Block], norm: Norm) -> list[Block]:
    """Layer norm over the features of all blocks (section 4.4)."""
    if not any(block.shared for block in blocks) or len(blocks) == 1:
        block = _joined(graph, blocks)
        own = norm.gain[block.columns], norm.shift[block.columns]
        return [replace(block, value=graph.op("LayerNormalization", block.value, *own, axis=-1, epsilon=norm.epsilon))]
    moments = [Moments.of(graph, block.value, len(block.columns), [1]) for block in blocks]
    mean, deviation = together(graph, moments, norm.epsilon)
    inverse = graph.op("Reciprocal", deviation)
    found = []
    for block, own_moments in zip(blocks, moments, strict=True):
        value = graph.op("Sub", block.value, own_moments.mean)
        away = graph.op("Mul", graph.op("Sub", own_moments.mean, mean), inverse)
        gain, shift = norm.gain[block.columns], norm.shift[block.columns]
        if block.shared:
            found.append(replace(block, value=value, scale=inverse, offset=away, gain=gain, shift=shift))
        else:
            normal = graph.op("Add", graph.op("Mul", value, inverse), away)
            found.append(replace(block, value=graph.op("Add", graph.op("Mul", normal, gain), shift)))
    return found


def _joined(graph: Graph, blocks: list[Block]) -> Block:
    """The blocks, which are all of the rows, as one."""
    if len(blocks) == 1:
        return blocks[0]
    value = graph.op("Concat", *(block.value for block in blocks), axis=1)
    return Block(value, np.concatenate([block.columns for block in blocks]), False)


@dataclass(frozen=True)
class Moments:
    """The count, the mean and the sum of squared distances to the mean of a row's numbers."""

    count: int
    mean: str
    squares: str

    @classmethod
    def of(cls, graph: Graph, value: str, count: int, axes: list[int]) -> Moments:
        mean = graph.mean(value, axes)
        squares = graph.op("ReduceSumSquare", graph.op("Sub", value, mean), axes, keepdims=1)
        return cls(count, mean, squares)


def together(graph: Graph, parts: list[Moments], epsilon: float) -> tuple[str, str]:
    """Mean and standard deviation over several values, by Chan's formula, which stays exact where means are large."""
    count = sum(part.count for part in parts)
    mean = graph.total([graph.op("Mul", part.mean, part.count / count) for part in parts])
    squares = [graph.total([part.squares for part in parts])]
    for part in parts if len(parts) > 1 else []:
        away = graph.op("Sub", part.mean, mean)
        squares.append(graph.op("Mul", graph.op("Mul", away, away), float(part.count)))
    variance = graph.op("Mul", graph.total(squares), 1 / count)
    return mean, graph.op("Sqrt", graph.op("Add", variance, epsilon))


def summed(graph: Graph, blocks: list[Block]) -> str:
    """The sum of all features, (n,)."""
    return graph.total([graph.sum(block.value, [1]) for block in blocks])


def dnn(graph: Graph, part: Part, blocks: list[Block]) -> str:
    """Fully connected layers, (n,)."""
    return graph.op("Squeeze", _units(graph, part, blocks), [1])


def two_streams(graph: Graph, part: Part, blocks: list[Block]) -> str:
    """Two networks, each on its half of the features, and the products of their units by heads, (n,)."""
    width, products, (*streams, last) = part["width"], part.arrays["products"], part.parts
    # The halves are of different parts, so that no block has columns of both.
    halves = [[block.moved(-n * width) for block in blocks if block.columns[0] // width == n] for n in (0, 1)]
    x, y = (_units(graph, stream, half) for stream, half in zip(streams, halves, strict=True))
    alone = graph.op("Gemm", graph.op("Concat", x, y, axis=1), last.arrays["weight"], last.arrays["bias"])
    heads, size, _ = products.shape
    first, second = (graph.reshape(each, [0, heads, 1, size]) for each in (x, y))
    both = graph.op("Mul", graph.op("MatMul", first, products), second)
    return graph.op("Add", graph.op("Squeeze", alone, [1]), graph.sum(both, [1, 2, 3]))


def _units(graph: Graph, part: Part, blocks: list[Block]) -> str:
    """The units of the last layer, (n, h)."""
    first, *others = part.parts
    x = _after(graph, part, first, _first_layer(graph, first, blocks))
    for layer in others:
        x = _after(graph, part, layer, graph.op("Gemm", x, layer.arrays["weight"], layer.arrays["bias"]))
    return x


def _after(graph: Graph, part: Part, layer: Part, x: str) -> str:
    if layer["norm"]:
        x = graph.op(
            "LayerNormalization", x, layer.arrays["gain"], layer.arrays["shift"], axis=-1, epsilon=part["epsilon"]
        )
    return graph.op(layer["activation"], x) if layer["activation"] else x


def _first_layer(graph: Graph, layer: Part, blocks: list[Block]) -> str:
    """Each block times its own rows of the weights; the result of the context's blocks is one row."""
    weight, bias = layer.arrays["weight"], layer.arrays["bias"].astype(np.float64)
    found: list[str] = []
    rows: list[str] = []
    for block in blocks:
        own = weight[block.columns]
        if block.scale:
            assert block.gain is not None
            assert block.shift is not None
            bias = bias + block.shift.astype(np.float64) @ own
            own = own * block.gain[:, None]
            rows.append(graph.op("Mul", graph.op("MatMul", block.value, own), block.scale))
            rows.append(graph.op("Mul", block.offset, own.sum(axis=0, keepdims=True)))
        else:
            (found if block.shared else rows).append(graph.op("MatMul", block.value, own))
    constant = bias.astype(np.float32)
    shared = graph.op("Add", graph.total(found), constant) if found else graph.constant(constant)
    return graph.total([*rows, shared])
