"""A column of some training rows, looked at to infer its kind; and whether numbers are ids or magnitudes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.data.kinds.buckets import Histogram, quantile_thresholds
from fieldwise.data.read.formats import is_list
from fieldwise.data.read.texts import texts_of

# How programs write that a number is missing.
NO_NUMBER = frozenset(("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N"))
# Rows below which "every row differs" proves nothing, and those of a value that comes back.
FEW_ROWS = 20
# Of a number that is compared with a category.
BUCKETS = 64
# The share of the base rate's log loss that the buckets of a number must save to count as evidence.
EVIDENCE = 0.001
# How much more than the other reading one must save where the counts of neighbours speak against it; and how much these
# counts correlate in a number, or differ by chance alone in a number of even spread.
LEAD, ALIKE, BY_CHANCE = 1.1, 0.8, 2.0


class Sample:
    """A column of the first training rows, and their labels; `later` is that of the last rows."""

    def __init__(
        self, column: pa.ChunkedArray, labels: NDArray[np.float32], later: pa.ChunkedArray | None = None
    ) -> None:
        self.labels, self.is_list = labels, is_list(column.type)
        self._later = later
        self.texts: list[str | None] = []
        self.places = np.empty(0, dtype=np.int64)
        if not self.is_list:
            self.texts, self.places = texts_of(column)
        # The distinct texts. A list has none: it is a set, whatever its members are.
        self.known = [text for text in self.texts if text is not None]

    @cached_property
    def later(self) -> tuple[list[str | None], NDArray[np.int64]]:
        """The distinct texts of the last rows, and the place of each row's; none where the first rows are all."""
        none: tuple[list[str | None], NDArray[np.int64]] = [], np.empty(0, dtype=np.int64)
        return none if self.is_list or self._later is None else texts_of(self._later)

    @cached_property
    def differs(self) -> bool:
        """Whether there is another value in every row, as in the column of an identifier."""
        present = np.array([text is not None for text in self.texts], dtype=bool)[self.places]
        return len(self.known) == int(present.sum()) >= FEW_ROWS

    @property
    def repeats(self) -> bool:
        """Whether its values come back, as those of a code or a price list do: in FEW_ROWS rows on average."""
        return len(self.known) * FEW_ROWS <= len(self.places)

    @cached_property
    def numbers(self) -> list[float] | None:
        """The known texts as numbers, or None where one is not."""
        return plain_numbers(self.known)

    @property
    def is_code(self) -> bool:
        """Whether fractions are no magnitude, as single values say of held-out rows; without evidence they are one."""
        _, as_category, least, _ = self._readings
        return as_category > least and not self.is_magnitude

    @property
    def is_magnitude(self) -> bool:
        """Numbers may be ids or magnitudes: whichever reading predicts held-out rows better by its rates alone.

        A magnitude is read in buckets of equal frequency, with and without heavy values on their own. It occurs about
        as often as its neighbours, an id at any frequency. Where the counts say so, the other reading must be clearly
        better: ids are often given in an order that means something too.
        """
        as_number, as_category, least, alike = self._readings
        if alike:
            return as_category <= LEAD * max(as_number, least)
        lead = 1.0 if alike is None else LEAD
        return as_number > max(lead * as_category, least)

    @cached_property
    def _readings(self) -> tuple[float, float, float, bool | None]:
        """What a number and a category save of the log loss, what counts as evidence, and whether counts are alike."""
        every = np.full(len(self.texts), np.nan)
        every[[place for place, text in enumerate(self.texts) if text is not None]] = self.numbers
        finite = np.isfinite(every)[self.places]
        values, places, labels = every[self.places][finite], self.places[finite], self.labels[finite]
        distinct, counts = np.unique(values, return_counts=True)
        even = np.unique(np.quantile(values, np.linspace(0, 1, BUCKETS + 1)[1:-1]))
        heavy_first = quantile_thresholds(Histogram(distinct, counts, np.zeros_like(counts)), BUCKETS)
        none = _held_out_loss(np.zeros(len(labels), dtype=np.int64), labels)
        as_number = max(none - _held_out_loss(np.searchsorted(by, values), labels) for by in (even, heavy_first))
        as_category = none - _held_out_loss(np.unique(places, return_inverse=True)[1], labels)
        return as_number, as_category, EVIDENCE * none, _counts_are_alike(counts)


def plain_numbers(texts: Sequence[str]) -> list[float] | None:
    """Texts as numbers, NaN for a missing one, or None where one is no number; 007 is a name, not a number.

    >>> plain_numbers(["1", "2.5", "?"]), plain_numbers(["1", "007"])
    ([1.0, 2.5, nan], None)
    """
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


def _counts_are_alike(counts: NDArray[np.int64]) -> bool | None:
    """Whether values next to each other have counts alike, as a magnitude's; None where all are about the same.

    >>> _counts_are_alike(np.array([900, 700, 500, 300, 200, 90, 40, 30]))
    True
    >>> _counts_are_alike(np.array([3, 900, 1, 2, 450, 7, 80])), _counts_are_alike(np.array([90, 100, 105, 88, 96]))
    (False, None)
    """
    left, right = counts[:-1].astype(np.float64), counts[1:].astype(np.float64)
    logs = np.log(counts)
    if np.ptp(logs[1:]) > 0 and np.ptp(logs[:-1]) > 0 and np.corrcoef(logs[1:], logs[:-1])[0, 1] >= ALIKE:
        return True
    return None if float(((left - right) ** 2 / (left + right)).mean()) <= BY_CHANCE else False


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
