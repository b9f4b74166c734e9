"""Finds the ONNX form for each kind of plain part in the folders' onnx.py files. Needs no torch.

A ranking computes pairs within the context once. For a pair between a candidate's field and one of the context, it
combines the context's vector with the pair's weights once, and every candidate uses the result.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from fieldwise import parts
from fieldwise.config.errors import BundleError, unknown
from fieldwise.graphs.features import Block
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides

Graphs = Callable[[Part, Sides], list[Block]]


class Form(NamedTuple):
    """Vectors of two sides -> blocks of features; a sum over pairs also has `summands`, one for each pair.

    `whole`: it needs all fields at once, so that a ranking computes all of it for every row.
    """

    features: Graphs
    summands: Graphs | None = None
    whole: bool = False


def whole(of_rows: Callable[[Part, Graph, str], str]) -> Form:
    """The form of a part that needs all fields at once: (part, graph, vectors (B, F, D)) -> features (B, width)."""

    def blocks(part: Part, sides: Sides) -> list[Block]:
        return [Block(of_rows(part, sides.graph, sides.joined()), np.arange(part["width"]), False)]

    return Form(blocks, whole=True)


@cache
def forms() -> dict[str, Form]:
    """The forms of all folders, by kind."""
    names = [f"{parts.__name__}.{folder.name}.onnx" for folder in pkgutil.iter_modules(parts.__path__) if folder.ispkg]
    found: dict[str, Form] = {}
    for name in names:
        if find_spec(name) is not None:
            found |= import_module(name).FORMS
    return found


def form_of(part: Part) -> Form:
    """The form of a plain part's kind."""
    if part.kind not in forms():
        raise BundleError(unknown("kind of part", part.kind, forms()))
    return forms()[part.kind]


def features(part: Part, sides: Sides) -> list[Block]:
    """The blocks of an interaction's features."""
    return form_of(part).features(part, sides)


def summands(part: Part, sides: Sides) -> list[Block]:
    """What each pair adds to the logit, for models whose logit is the sum of their features."""
    form = form_of(part)
    return (form.summands or form.features)(part, sides)
