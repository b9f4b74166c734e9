"""Units of a context by the signs that all rows agree on, against relu of each row in float64."""

from __future__ import annotations

import numpy as np
import pytest

from fieldwise.graphs.context_norm import RowNorm, next_layer
from fieldwise.graphs.graph import Graph
from tests.export.test_network import session

PAIRS, WIDTH, OUTPUTS = 6, 8, 3


def slow(x, mean, deviation, slope, weight):
    """(n, P * K), unit by unit."""
    units = np.maximum(0, x + deviation[None, :, :] * slope - mean[None, :, :])
    return np.einsum("pnh,phk->npk", units, weight).reshape(len(mean), -1)


@pytest.mark.parametrize("spread", [0.0, 0.05, 3.0])
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("own_slopes", [1, PAIRS])
def test_the_next_layer_is_that_of_each_row(spread, rows, own_slopes):
    random = np.random.default_rng(5)
    x = random.standard_normal((PAIRS, 1, WIDTH)).astype(np.float32)
    mean = (0.1 + spread * random.standard_normal((rows, 1))).astype(np.float32)
    deviation = (1 + spread * random.random((rows, 1))).astype(np.float32)
    slope = (0.3 * random.standard_normal((own_slopes, 1, WIDTH))).astype(np.float32)
    weight = random.standard_normal((PAIRS, WIDTH, OUTPUTS)).astype(np.float32)
    graph = Graph()
    given = {"x": x, "mean": mean, "deviation": deviation}
    for name, array in given.items():
        graph.input(name, np.float32, array.shape)
    graph.output(next_layer(graph, "x", RowNorm("mean", "deviation", slope), weight), "found", np.float32, (rows, "h"))
    (found,) = session(graph.model()).run(None, given)
    expected = slow(*(each.astype(np.float64) for each in (x, mean, deviation, slope, weight)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
