"""The context's units after a norm with statistics of each row, without computing every unit for every row.

relu(x + d s - m) has the same x for all rows of a ranking; only a row's mean m and deviation d differ, and little.
Where x is far from 0 all rows have the same sign, and what the units add to the next layer is linear in 1, d and m:
three sums over units, computed once. The few units whose sign may differ between rows are computed row by row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.graphs.graph import Graph

FLOAT = 1


class RowNorm(NamedTuple):
    """A mean and a deviation (B, 1) for each row, and the slope s (P or 1, 1, H) of the units in the deviation."""

    mean: str
    deviation: str
    slope: NDArray[np.float32]


def next_layer(graph: Graph, x: str, norm: RowNorm, weight: NDArray[np.float32]) -> str:
    """Units x (P, 1, H) of the context -> relu(x + d s - m) by weights (P, H, K), as features (B, P * K)."""
    pairs, width, outputs = weight.shape
    slope = np.ascontiguousarray(np.broadcast_to(norm.slope, (pairs, 1, width)))
    on, unsure = _signs(graph, x, norm, slope)
    mask = graph.op("Cast", on, to=FLOAT)
    sums = graph.op("Concat", graph.op("Mul", mask, x), graph.op("Mul", mask, slope), graph.op("Neg", mask), axis=1)
    basis = graph.op("Transpose", graph.op("MatMul", sums, weight), perm=[0, 2, 1])
    ones = graph.op("Add", graph.op("Mul", norm.mean, 0.0), 1.0)
    rows = graph.op("Concat", ones, norm.deviation, norm.mean, axis=1)
    sure = graph.op("MatMul", graph.reshape(basis, [pairs * outputs, 3]), _turned(graph, rows))
    places, added = _row_by_row(graph, x, norm, slope, weight, unsure)
    return _turned(graph, graph.op("ScatterND", sure, places, added, reduction="add"))


def _signs(graph: Graph, x: str, norm: RowNorm, slope: NDArray[Any]) -> tuple[str, str]:
    """Which units (P, 1, H) are above 0 in all rows, and which may be: from the extremes of m and d alone."""
    lowest, highest = (graph.op(kind, norm.mean, keepdims=0) for kind in ("ReduceMin", "ReduceMax"))
    deviations = [graph.op(kind, norm.deviation, keepdims=0) for kind in ("ReduceMin", "ReduceMax")]
    ends = [graph.op("Mul", each, slope) for each in deviations]
    low = graph.op("Sub", graph.op("Min", *ends), highest)
    high = graph.op("Sub", graph.op("Max", *ends), lowest)
    on = graph.op("GreaterOrEqual", graph.op("Add", x, low), 0.0)
    return on, graph.op("And", graph.op("Not", on), graph.op("Greater", graph.op("Add", x, high), 0.0))


def _row_by_row(
    graph: Graph, x: str, norm: RowNorm, slope: NDArray[Any], weight: NDArray[Any], chosen: str
) -> tuple[str, str]:
    """For U chosen units: the places (U, K, 1) of their pairs' features, and what they add there, (U, K, B)."""
    _, width, outputs = weight.shape
    places = graph.op("Squeeze", graph.op("NonZero", graph.reshape(chosen, [-1])), [0])
    own, slopes, weights = (
        graph.op("Gather", each, places, axis=0)
        for each in (graph.reshape(x, [-1, 1]), slope.reshape(-1, 1), weight.reshape(-1, outputs, 1))
    )
    deviation, mean = _turned(graph, norm.deviation), _turned(graph, norm.mean)
    away = graph.op("Sub", graph.op("Mul", slopes, deviation), mean)
    active = graph.op("Relu", graph.op("Add", own, away))
    first = graph.op("Unsqueeze", graph.op("Mul", graph.op("Div", places, width), outputs), [1])
    features = graph.op("Unsqueeze", graph.op("Add", first, np.arange(outputs)), [2])
    return features, graph.op("Mul", graph.op("Unsqueeze", active, [1]), weights)


def _turned(graph: Graph, value: str) -> str:
    return graph.op("Transpose", value, perm=[1, 0])
