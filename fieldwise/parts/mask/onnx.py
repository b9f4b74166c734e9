"""MaskNet's blocks, as a graph of whole rows."""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.layers import affine, norm
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.forms import whole
from fieldwise.parts.gate.onnx import gate


def mask(part: Part, graph: Graph, v: str) -> str:
    gain, shift = part.arrays["gain"], part.arrays["shift"]
    same = np.ones(gain.shape[1], dtype=np.float32), np.zeros(gain.shape[1], dtype=np.float32)
    normal = graph.op("LayerNormalization", v, *same, axis=-1, epsilon=part["epsilon"])
    normal = graph.op("Add", graph.op("Mul", normal, gain), shift)
    row, x = (graph.reshape(each, [0, -1]) for each in (v, normal))
    outputs = []
    for gated, layer, normed in (block.parts for block in part.parts):
        masked = graph.op("Mul", gate(graph, gated, row), x)
        outputs.append(graph.op("Relu", norm(graph, normed, affine(graph, layer, masked))))
        x = outputs[-1] if part["serial"] else x
    return x if part["serial"] else graph.op("Concat", *outputs, axis=1)


FORMS = {"mask": whole(mask)}
