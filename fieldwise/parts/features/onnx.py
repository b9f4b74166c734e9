"""Flattened vectors, concatenated interactions and normed features, as graphs on two sides."""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.features import Block, Norm, normed
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides, flat_places
from fieldwise.parts.forms import Form, features


def flatten(part: Part, sides: Sides) -> list[Block]:
    graph, blocks = sides.graph, []
    for side in sides.all:
        kept, columns = flat_places(part.arrays.get("places"), side.fields, sides.dim)
        value = graph.reshape(side.vectors, [0, -1])
        whole = len(kept) == len(side.fields) * sides.dim
        blocks.append(Block(value if whole else graph.take(value, kept, 1), columns, side.shared))
    return blocks


def concat(part: Part, sides: Sides) -> list[Block]:
    starts = np.cumsum([0, *part["widths"]])
    return [
        block.moved(int(start))
        for each, start in zip(part.parts, starts, strict=False)
        for block in features(each, sides)
    ]


def normed_features(part: Part, sides: Sides) -> list[Block]:
    blocks = features(part.parts[0], sides)
    return normed(sides.graph, blocks, Norm(part.arrays["gain"], part.arrays["shift"], part["epsilon"]))


FORMS = {"flatten": Form(flatten), "concat": Form(concat), "normed": Form(normed_features)}
