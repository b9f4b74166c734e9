"""Poly-2's weights of pairs, as a graph on two sides."""

from __future__ import annotations

import numpy as np

from fieldwise.graphs.features import Block
from fieldwise.graphs.lookups import Ids, pair_weights
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides
from fieldwise.parts.forms import Form


def weights_of_pairs(part: Part, sides: Sides) -> list[Block]:
    """The weights of the context's pairs once, and of all others in every row."""
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


FORMS = {"pair_weights": Form(weights_of_pairs)}
