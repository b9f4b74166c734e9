"""Values of a request -> ids, by plain dictionaries: what the encoder's transform gives, without tables in between."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import FieldCode, as_number, log_square
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.texts import hash_of
from fieldwise.data.schema import FIRST, MISSING, OTHER, PAD

LARGEST_EXACT = 2**53
# The values of a column -> its id columns, each as long as the values.
Coder = Callable[[Sequence[Any]], list[list[int]]]


def coder(code: FieldCode) -> Coder:
    """How a field's values become its id columns."""
    if code.field.kind == "set":
        return _set(code)
    if code.field.kind == "numeric":
        return _number(code)
    return _category(code)


def _category(code: FieldCode) -> Coder:
    find, buckets, name = code.vocabulary.get, code.field.hash_buckets, code.field.name

    def one(value: Any) -> int:
        text = plain_text(value, name)
        if not text:
            return MISSING
        return FIRST + hash_of(text) % buckets if buckets else find(text, OTHER)

    def column(values: Sequence[Any]) -> list[list[int]]:
        # A vocabulary holds texts as text_of spells them: what is found at once needs no spelling.
        ids = [find(value) if value.__class__ is str else None for value in values]
        return [[one(value) if id is None else id for value, id in zip(values, ids, strict=True)]]

    return column


def _set(code: FieldCode) -> Coder:
    name, separator = code.field.name, code.field.separator

    def cell(value: Any) -> Sequence[Any] | None:
        if isinstance(value, (list, tuple)):
            return [plain_text(member, name) for member in value]
        text = plain_text(value, name)
        return None if text is None else text.split(separator)

    def columns(values: Sequence[Any]) -> list[list[int]]:
        found: list[list[int]] = code._sets([cell(value) for value in values]).T.tolist()
        return found

    return columns


def _number(code: FieldCode) -> Coder:
    name, thresholds, find = code.field.name, code.thresholds.tolist(), code.vocabulary.get
    anchors, steps = code.anchors, code.field.interpolate
    places = np.arange(len(anchors))

    def one(value: Any) -> int:
        """The id, or the fine id (buckets.fine_ids) of an interpolated number."""
        number: float | None
        # Whole numbers up to LARGEST_EXACT are the same by way of their text.
        if value.__class__ is float or (value.__class__ is int and -LARGEST_EXACT < value < LARGEST_EXACT):
            number = value
        else:
            number = as_number(plain_text(value, name))
        if number is None:
            return OTHER * (steps or 1)
        if number != number:
            return MISSING * (steps or 1)
        if steps:
            return FIRST * steps + math.floor(float(np.interp(number, anchors, places)) * steps + 0.5)
        if code.field.buckets == "log-square":
            return find(log_square(number), OTHER)
        return FIRST + bisect_left(thresholds, number)

    def column(values: Sequence[Any]) -> list[list[int]]:
        found = [one(value) for value in values]
        if not steps:
            return [found]
        # As buckets.spread: what is no number stands alone.
        first = [fine // steps for fine in found]
        return [first] + [
            [(fine + place) // steps if fine >= FIRST * steps else PAD for fine in found] for place in range(1, steps)
        ]

    return column


def plain_text(value: Any, name: str) -> str | None:
    """The text of a value; lists and objects are refused."""
    if isinstance(value, (list, tuple, dict, set)):
        kind = "a list" if isinstance(value, (list, tuple, set)) else "an object"
        raise DataError(f"field '{name}' takes a text, a number, true, false or null, found {kind}")
    try:
        return text_of(value)
    except ValueError:
        raise DataError(f"field '{name}' takes numbers of up to 4,300 digits, found a longer one") from None
