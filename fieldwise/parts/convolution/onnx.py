"""CCPM's convolutions, as a graph of whole rows."""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.features import Block
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides
from fieldwise.parts.forms import Form


def convolution(part: Part, sides: Sides) -> list[Block]:
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
            # TopK of all places, smallest first, sorts them.
            places = graph.pair("TopK", places, [kept], axis=2, largest=0)[0]
            x, length = graph.op("GatherElements", x, places, axis=2), kept
        x = graph.op("Relu", x)
    return [Block(graph.reshape(x, [0, -1]), np.arange(channels * length), False)]


FORMS = {"convolution": Form(convolution, whole=True)}
