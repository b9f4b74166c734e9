"""Label and weight columns of any type -> numbers; anything else is refused with its row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, OddCell
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.texts import texts_of

# Texts that are 0 and 1 wherever they stand; and pairs that are labels where a column has no others, the 1 last.
PLAIN = {"0": 0, "1": 1, "false": 0, "true": 1}
# The share of rows that have one of the two values.
NEARLY_ALL = 0.95
PAIRS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("-1", "1"), ("1", "2"))


@dataclass(frozen=True)
class Classes:
    """The two values of a label column, in small letters and without blanks around them; without any they are 0 and 1,
    or false and true."""

    negative: str = ""
    positive: str = ""

    def __str__(self) -> str:
        return f"'{self.negative}' or '{self.positive}'" if self.positive else "0 or 1"

    def code(self, text: str | None) -> int:
        """1, 0, or -1 for what is neither."""
        plain = _plain(text or "")
        if not self.positive:
            return PLAIN.get(plain, -1)
        return {self.negative: 0, self.positive: 1}.get(plain, -1)


ZERO_ONE = Classes()


def _plain(text: str) -> str:
    """A value as it is compared: 1 and 1.0, Yes and yes are the same."""
    return (text_of(text.strip()) or "").casefold()


def find_classes(name: str, columns: Iterable[pa.ChunkedArray], positive: str = "") -> Classes:
    """What the values of a label column are: 0 and 1, a pair of PAIRS, or `positive` and the other one.

    Pieces of the column are looked at until two values are found. Nearly all rows must have these two; a third value is
    refused, or its rows skipped, where labels are read.
    """
    counts: Counter[str] = Counter()
    for column in columns:
        texts, places = texts_of(column)
        for text, rows in zip(texts, np.bincount(places, minlength=len(texts)).tolist(), strict=True):
            if text and rows:
                counts[_plain(text)] += rows
        if len(counts) > 1:
            break
    if positive:
        return _with_positive(name, counts, _plain(positive))
    (two, rows), total = _most_frequent(counts), counts.total()
    if rows < NEARLY_ALL * total:
        return ZERO_ONE
    return next((Classes(*pair) for pair in PAIRS if two == set(pair) and not two <= PLAIN.keys()), ZERO_ONE)


def _most_frequent(counts: Counter[str]) -> tuple[set[str], int]:
    """The two most frequent values, and how many rows have them."""
    two = dict(counts.most_common(2))
    return set(two), sum(two.values())


def _with_positive(name: str, counts: Counter[str], positive: str) -> Classes:
    others = [value for value, _ in counts.most_common() if value != positive]
    enough = others and counts[positive] + counts[others[0]] >= NEARLY_ALL * counts.total()
    if positive not in counts or not enough:
        shown = ", ".join(f"'{value[:40]}'" for value, _ in counts.most_common(5)) or "none"
        raise ConfigError(f"--positive takes one of the two values of label '{name}', found '{positive}' of {shown}")
    return Classes(others[0], positive)


def read_weights(column: pa.ChunkedArray, name: str, passed: int = 0, source: str = "the rows") -> NDArray[np.float32]:
    """Weights of 0 or more; anything else is refused with its row."""
    texts, places = texts_of(column)
    weights = np.array([_weight(text) for text in texts])[places]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        found = texts[places[wrong[0]]]
        shown = "nothing" if found is None else repr(found[:40])
        problem = f"weights must be numbers of 0 or more, found {shown} in '{name}'"
        raise OddCell(problem, f"{source}, row {passed + wrong[0] + 1}", name, found)
    return weights.astype(np.float32)


def _weight(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def read_labels(
    column: pa.ChunkedArray,
    name: str = "label",
    passed: int = 0,
    source: str = "the rows",
    classes: Classes = ZERO_ONE,
) -> NDArray[np.uint8]:
    """0/1 of a label column, whatever its type; anything else is refused with its row."""
    texts, places = texts_of(column)
    codes = np.array([classes.code(text) for text in texts], dtype=np.int8)[places]
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        found = texts[places[row]]
        shown = "nothing" if found is None else repr(found[:40])
        known = {text for place, text in enumerate(texts) if text is not None and (places == place).any()}
        two = "--positive VALUE says which of two values is 1" if found is not None and len(known) == 2 else ""
        problem = f"label '{name}' must be {classes}, found {shown}"
        raise OddCell(problem, f"{source}, row {passed + row + 1}", name, found, two)
    return codes.astype(np.uint8)
