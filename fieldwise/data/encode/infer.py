"""Guessing a schema from rows: which columns are categories, numbers, sets, and which to leave out."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import DataError
from fieldwise.data.encode.encoder import NO_NUMBER
from fieldwise.data.read.formats import is_list
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import Field, Schema

SAMPLE_ROWS = 200_000
SEPARATORS = ("|", ";", ",")
# A number with so few values, such as an hour or a day of the month, is as well off as a category.
FEW_VALUES = 32
# The share of the base rate's log loss that the buckets of a number must save to count as evidence.
EVIDENCE = 0.001
# How much more than the other reading one must save where the counts of neighbours speak against it; and how much these
# counts correlate in a number, or differ by chance alone in a number of even spread.
LEAD, ALIKE, BY_CHANCE = 1.1, 0.8, 2.0
# Columns that are noted one by one when they are left out.
NOTED = 10
# Rows below which "every row differs" proves nothing.
FEW_ROWS = 20


def infer_schema(
    sample: pa.Table, labels: NDArray[np.float32], label: str, weight: str = ""
) -> tuple[Schema, list[str]]:
    """A schema for these training rows, and notes on what was left out and why."""
    fields, left_out = [], []
    for name in sample.column_names:
        if name in (label, weight):
            continue
        field = _infer_field(name, sample[name], labels)
        if field is None:
            left_out.append(name)
        else:
            fields.append(field)
    notes = _notes(left_out)
    if not fields:
        raise DataError(f"no column is left to predict '{label}' from: {'; '.join(notes)}; name fields with --schema")
    return Schema(label, tuple(fields), weight), notes


def _notes(names: list[str]) -> list[str]:
    """A line for each column that was left out, or one for all where they are many."""
    if len(names) <= NOTED:
        return [f"column '{name}' has another value in every row: left out as an identifier" for name in names]
    few = ", ".join(f"'{name}'" for name in names[:NOTED])
    return [
        f"{len(names):,} columns have another value in every row: left out as identifiers, {few} and "
        f"{len(names) - NOTED:,} more"
    ]


def _infer_field(name: str, column: pa.ChunkedArray, labels: NDArray[np.float32]) -> Field | None:
    if is_list(column.type):
        return Field(name, "set")
    texts, places = texts_of(column)
    present = np.array([text is not None for text in texts])[places]
    known = [text for text in texts if text is not None]
    differs = len(known) == int(present.sum()) >= FEW_ROWS
    numbers = _numbers(known)
    if numbers is None:
        separator = _separator(known)
        if separator:
            return Field(name, "set", separator=separator)
        return None if differs else Field(name)
    if not all(value.is_integer() for value in numbers if math.isfinite(value)):
        return Field(name, "numeric")
    if differs:
        return None
    if len(known) <= FEW_VALUES:
        return Field(name)
    values = np.full(len(texts), np.nan)
    values[[place for place, text in enumerate(texts) if text is not None]] = numbers
    finite = np.isfinite(values)[places]
    return Field(name, _better_kind(values[places][finite], places[finite], labels[finite]))


def _numbers(texts: list[str]) -> list[float] | None:
    """The texts as numbers, or None where one is not; 007 is a name, not a number."""
    numbers = []
    for text in texts:
        digits = text.lstrip("+-")
        if "_" in text or (len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()):
            return None
        if text in NO_NUMBER:
            numbers.append(math.nan)
            continue
        try:
            numbers.append(float(text))
        except ValueError:
            return None
    return numbers if any(number == number for number in numbers) else None


def _separator(texts: list[str]) -> str:
    """The separator of a set's cells: in many cells, and with members that come again in other cells."""
    together = "\n".join(texts)
    for separator in SEPARATORS:
        if separator not in together:
            continue
        cells = [text.split(separator) for text in texts]
        several = sum(len(cell) > 1 for cell in cells)
        members = {member for cell in cells for member in cell}
        if several >= 0.2 * len(cells) and several > 2 and 2 * len(members) < sum(map(len, cells)):
            return separator
    return ""


def _better_kind(values: NDArray[np.float64], places: NDArray[np.int64], labels: NDArray[np.float32]) -> str:
    """Integers may be ids or magnitudes: whichever reading predicts held-out rows better by its rates alone.

    A magnitude occurs about as often as its neighbours, an id as often as it likes. Where the counts say so, the other
    reading must be clearly better: ids are often given in an order that tells something too.
    """
    bounds = np.unique(np.quantile(values, np.linspace(0, 1, 65)[1:-1]))
    none = _held_out_loss(np.zeros(len(labels), dtype=np.int64), labels)
    as_number = none - _held_out_loss(np.searchsorted(bounds, values), labels)
    as_category = none - _held_out_loss(np.unique(places, return_inverse=True)[1], labels)
    looks, least = _looks_like(np.unique(values, return_counts=True)[1]), EVIDENCE * none
    if looks == "numeric":
        return "categorical" if as_category > LEAD * max(as_number, least) else "numeric"
    lead = LEAD if looks == "categorical" else 1.0
    return "numeric" if as_number > max(lead * as_category, least) else "categorical"


def _looks_like(counts: NDArray[np.int64]) -> str:
    """What the counts of the values, in the order of these, say: the kind, or nothing where all are about the same.

    >>> _looks_like(np.array([900, 700, 500, 300, 200, 90, 40, 30])), _looks_like(np.array([3, 900, 1, 2, 450, 7, 80]))
    ('numeric', 'categorical')
    >>> _looks_like(np.array([90, 100, 105, 88, 96, 101]))
    ''
    """
    left, right = counts[:-1].astype(np.float64), counts[1:].astype(np.float64)
    logs = np.log(counts)
    if np.ptp(logs[1:]) > 0 and np.ptp(logs[:-1]) > 0 and np.corrcoef(logs[1:], logs[:-1])[0, 1] >= ALIKE:
        return "numeric"
    return "" if float(((left - right) ** 2 / (left + right)).mean()) <= BY_CHANCE else "categorical"


def _held_out_loss(groups: NDArray[np.int64], labels: NDArray[np.float32], strength: float = 10.0) -> float:
    """Log loss of a group's smoothed rate, fitted on every other row and read on the rest, both ways."""
    total = 0.0
    size, even = int(groups.max()) + 1, np.arange(len(groups)) % 2 == 0
    for fit, held in ((even, ~even), (~even, even)):
        base = float(np.clip(labels[fit].mean(), 1e-6, 1 - 1e-6))
        shown = np.bincount(groups[fit], minlength=size)
        clicked = np.bincount(groups[fit], weights=labels[fit], minlength=size)
        rate = ((clicked + strength * base) / (shown + strength))[groups[held]]
        total -= float(np.where(labels[held] > 0, np.log(rate), np.log1p(-rate)).sum())
    return total / len(groups)
