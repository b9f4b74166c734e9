"""The ONNX forms of parts, by the kinds of plain parts: each folder's onnx.py tells its own. Torch is not needed.

Pairs within the context are computed once; pairs between a candidate's field and the context's use what the context's
field makes of the pair's weights, computed once too.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from fieldwise import parts
from fieldwise.config.errors import BundleError, unknown
from fieldwise.graphs.features import Block
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import Sides

Graphs = Callable[[Part, Sides], list[Block]]


class Form(NamedTuple):
    """Vectors of two sides -> blocks of features; of a sum over pairs also its summands, pair by pair.

    `whole`: it looks at all fields at once, so that every row of a ranking goes through the whole of it.
    """

    features: Graphs
    summands: Graphs | None = None
    whole: bool = False


@cache
def forms() -> dict[str, Form]:
    """All that the folders have, by kind."""
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
    """What each pair adds to the logit, where the features' sum is all there is."""
    form = form_of(part)
    return (form.summands or form.features)(part, sides)
