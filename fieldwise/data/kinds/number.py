"""Numbers: the bucket a value is in, its place between buckets, or the Criteo winners' words for it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.config.errors import ConfigError, OddCell, unknown
from fieldwise.data.kinds.buckets import (
    Floats,
    Histogram,
    fine_ids,
    fit_anchors,
    fit_thresholds,
    heavy_values,
    spread,
)
from fieldwise.data.kinds.category import OverWords, WordField, Words
from fieldwise.data.kinds.counted import Counted, Query, summed
from fieldwise.data.kinds.kind import (
    BY_BUCKET,
    FIRST,
    MISSING,
    OTHER,
    PAD,
    CellLoop,
    Code,
    Coder,
    Field,
    Ids,
    plain_text,
)
from fieldwise.data.kinds.samples import NO_NUMBER, Sample
from fieldwise.data.read.cells import Cells
from fieldwise.data.read.formats import text_of

BUCKETS = ("quantile", "count", "log-square", "explicit", "tree")
# A number with so few values, such as an hour or a day of the month, is as well off as a category.
FEW_VALUES = 32
LARGEST_EXACT = 2**53
WAY_OUT = "mend it, leave such rows out with --on-bad-rows skip, or make the field categorical in the schema"


@dataclass(frozen=True, init=False)
class NumberField(WordField):
    """A number. `buckets` says how thresholds are found.

    `quantile`: `max_buckets` of equal frequency; `count`: a threshold whenever more than `bucket_count` rows have
    passed; `log-square`: floor(ln(v)^2) above 2, as words; `explicit`: `thresholds` as given; `tree`: at most
    `max_buckets`, of `bucket_count` rows or more, that predict the label best. `interpolate` M > 0: a number has
    the vectors of the two nearest buckets, mixed by its place between their medians in steps of 1/M. Of `quantile`
    buckets, values with as many rows as a bucket have one of their own, and a vector that mixes with no other.
    """

    kind: ClassVar = "numeric"
    history_key: ClassVar = BY_BUCKET
    is_number: ClassVar = True
    may_be_position: ClassVar = True
    least: ClassVar = {**WordField.least, "max_buckets": 2, "bucket_count": 1}
    buckets: str = "quantile"
    max_buckets: int = 64
    bucket_count: int = 20
    thresholds: tuple[float, ...] = ()

    def __init__(self, name: str, kind: str = "numeric", **settings: Any) -> None:
        for number in settings.get("thresholds", ()):
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                raise ConfigError(f"field '{name}': thresholds are numbers, found {number!r}")
        super().__init__(name, kind, **settings | {"thresholds": tuple(map(float, settings.get("thresholds", ())))})

    def check(self) -> None:
        if self.buckets not in BUCKETS:
            raise ConfigError(f"field '{self.name}': " + unknown("buckets", self.buckets, BUCKETS))
        rising = all(low < high for low, high in itertools.pairwise(self.thresholds))
        if self.buckets == "explicit" and not (rising and all(t == t for t in self.thresholds)):
            raise ConfigError(f"field '{self.name}': thresholds must rise, found {list(self.thresholds)}")
        number = as_number(self.at)
        if self.at and (number is None or not math.isfinite(number)):
            raise ConfigError(f"field '{self.name}': at must be a number, found '{self.at}'")
        super().check()

    @property
    def ordered(self) -> bool:
        """Log-square buckets are words, the most frequent first."""
        return self.buckets != "log-square"

    @property
    def unordered(self) -> str:
        return "log-square buckets"

    @property
    def why_always_known(self) -> str:
        return "numbers always have a bucket"

    def finer(self, buckets: int, steps: int) -> Field:
        return self if self.settings else replace(self, max_buckets=buckets, interpolate=steps)

    @classmethod
    def infer(cls, name: str, sample: Sample) -> Field | None:
        if sample.numbers is None:
            return None
        if not all(value.is_integer() for value in sample.numbers if math.isfinite(value)):
            many = len(sample.known) > FEW_VALUES
            return None if many and sample.repeats and sample.is_code else cls(name)
        few = sample.differs or len(sample.known) <= FEW_VALUES
        return None if few or not sample.is_magnitude else cls(name)

    def query(self, column: str, is_list: bool) -> Query:
        return replace(super().query(column, is_list), counted=True)

    def first_position(self, column: Counted) -> str:
        self.check_texts(column)
        if not len(seen := column.histogram.values):
            raise ConfigError(f"field '{self.name}': a position needs a number in the training rows, found none")
        return str(text_of(float(seen[0])))

    def fit(self, column: Counted) -> Code:
        self.check_texts(column)
        seen = column.histogram
        if self.buckets == "log-square":
            pairs = [(log_square(v), n) for v, n in zip(seen.values.tolist(), seen.counts.tolist(), strict=True)]
            return LogSquareCode(self, self.words(self.frequent(summed(pairs))))
        thresholds = fit_thresholds(self, seen)
        if not self.interpolate:
            return BucketCode(self, thresholds)
        alone, light = self._alone(seen)
        return PlaceCode(self, thresholds, fit_anchors(thresholds, light, alone), alone)

    def _alone(self, seen: Histogram) -> tuple[Floats, Histogram]:
        """The values that mix with no other, and the others; all of them are others where nothing else is left."""
        heavy = heavy_values(seen.counts, self.max_buckets)
        if self.buckets != "quantile" or heavy.all():
            return np.empty(0), seen
        return seen.values[heavy], seen.only(~heavy)

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        if self.buckets == "log-square":
            return LogSquareCode(self, self.words(texts))
        bounds = (np.array(state.get(key, ()), dtype=np.float64) for key in ("thresholds", "anchors", "alone"))
        thresholds, anchors, alone = bounds
        if not self.interpolate:
            return BucketCode(self, thresholds)
        if not (len(anchors) and np.isfinite(anchors).all() and np.isfinite(alone).all()):
            raise ValueError(f"field '{self.name[:100]}' needs finite anchors")
        return PlaceCode(self, thresholds, anchors, alone)

    def check_texts(self, column: Counted) -> None:
        """A text that is no number is a mistake in the schema; in later rows it is the field's `other`."""
        for text in column.odd_texts:
            if as_number(text_of(text)) is None:
                problem = f"field '{self.name}' is numeric, found {str(text)[:40]!r}"
                raise OddCell(problem, "the training rows", self.name, text_of(text), WAY_OUT)


class NumberCode(Code):
    """Numbers, or texts of them, to ids; a text that is no number is `other`."""

    field: NumberField

    @abstractmethod
    def number_ids(self, values: Floats) -> Ids:
        """Ids of numbers; NaN is missing."""

    @abstractmethod
    def finder(self) -> Callable[[float], int]:
        """The same for one number, which is not NaN; of an interpolated one the fine id (buckets.py)."""

    def ids(self, texts: Sequence[str | None]) -> Ids:
        numbers = [as_number(text) for text in texts]
        ids = self.number_ids(np.array([math.nan if n is None else n for n in numbers], dtype=np.float64))
        no_numbers = [place for place, n in enumerate(numbers) if n is None]
        ids[no_numbers] = PAD
        ids.reshape(len(ids), self.width)[no_numbers, 0] = OTHER
        return ids

    def column_ids(self, column: pa.ChunkedArray) -> Ids:
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            return super().column_ids(column)
        values = pc.cast(column.combine_chunks(), pa.float64(), safe=False)
        return self.number_ids(np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64))

    def word_ids(self, words: pa.Array) -> Ids:
        """All at once where all of them plainly are numbers; otherwise they are looked at one by one."""
        try:
            numbers = np.asarray(pc.cast(words, pa.float64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            return super().word_ids(words)
        return super().word_ids(words) if np.isnan(numbers).any() else self.number_ids(numbers)

    def coder(self) -> Coder:
        name, find, steps, ids = self.field.name, self.finder(), self.width, self.id_of_place

        def one(value: Any) -> int:
            number: float | None
            # Whole numbers up to LARGEST_EXACT are the same by way of their text.
            if value.__class__ is float or (value.__class__ is int and -LARGEST_EXACT < value < LARGEST_EXACT):
                number = value
            else:
                number = as_number(plain_text(value, name))
            if number is None:
                return OTHER * steps
            return find(number) if number == number else MISSING * steps

        def column(values: Sequence[Any]) -> list[list[int]]:
            found = [one(value) for value in values]
            if steps == 1:
                return [found]
            # As buckets.spread: what is no number stands alone.
            first, numbers = [fine // steps for fine in found], FIRST * steps
            places = [first] + [
                [(fine + place) // steps if fine >= numbers else PAD for fine in found] for place in range(1, steps)
            ]
            return [[ids[place] if place >= FIRST else place for place in own] for own in places] if ids else places

        return column

    @property
    def id_of_place(self) -> list[int]:
        """The ids of places, where these are others."""
        return []

    def grown(self, column: Counted) -> Code:
        """Thresholds and words stay; new training rows must hold numbers too."""
        self.field.check_texts(column)
        return self

    def examples(self, most: int) -> list[str]:
        return []

    @property
    def hint(self) -> str:
        bounds = [number for text in self.examples(8) if math.isfinite(number := float(text))]
        return f"a number, often {bounds[0]:.15g} to {bounds[-1]:.15g}" if len(bounds) > 1 else "a number"


@dataclass
class BucketCode(NumberCode):
    """Buckets that end at `thresholds` and include them."""

    field: NumberField
    thresholds: Floats

    @property
    def size(self) -> int:
        return FIRST + len(self.thresholds) + 1

    @property
    def state(self) -> dict[str, Any]:
        return {"thresholds": self.thresholds.tolist()}

    def number_ids(self, values: Floats) -> Ids:
        buckets = np.searchsorted(self.thresholds, values, side="left") + FIRST
        return np.where(np.isnan(values), MISSING, buckets).astype(np.int32)

    def finder(self) -> Callable[[float], int]:
        thresholds = self.thresholds.tolist()
        return lambda number: FIRST + bisect_left(thresholds, number)

    @property
    def loop(self) -> type[CellLoop] | None:
        return CellNumbers

    @property
    def bounds(self) -> Floats:
        """Numbers of all sizes."""
        return self.thresholds

    @property
    def numbers(self) -> Floats:
        """The middle of each bucket; of the first and the last one their only bound."""
        ends = np.concatenate([self.thresholds[:1], self.thresholds, self.thresholds[-1:]])
        middles = (ends[1:] + ends[:-1]) / 2 if len(self.thresholds) else np.zeros(1)
        return np.concatenate([np.full(FIRST, math.nan), middles])

    def text_of_id(self, number: int) -> str:
        bounds = ["-inf", *(f"{t:g}" for t in self.thresholds), "inf"]
        return f"({bounds[number - FIRST]}, {bounds[number - FIRST + 1]}]"

    def examples(self, most: int) -> list[str]:
        bounds = self.bounds
        return [f"{bound:g}" for bound in bounds[:: max(1, -(-len(bounds) // most))]]


@dataclass
class PlaceCode(BucketCode):
    """A place between `anchors`, the values that stand for the buckets; or one of the values that stand `alone`.

    Both have ids in the order of their values. Places count the anchors, and the values that stand alone behind them.
    """

    anchors: Floats
    alone: Floats = dataclasses.field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        self.width = self.field.interpolate
        values = np.concatenate([self.anchors, self.alone])
        self.values = np.sort(values)
        self.places = FIRST + np.argsort(np.argsort(values, kind="stable"), kind="stable")

    @property
    def size(self) -> int:
        return FIRST + len(self.values)

    @property
    def state(self) -> dict[str, Any]:
        own = {**super().state, "anchors": self.anchors.tolist()}
        return own | ({"alone": self.alone.tolist()} if len(self.alone) else {})

    @property
    def numbers(self) -> Floats:
        return np.concatenate([np.full(FIRST, math.nan), self.values])

    @property
    def id_of_place(self) -> list[int]:
        return [MISSING, OTHER, *self.places.tolist()] if len(self.alone) else []

    @property
    def in_buckets(self) -> Code:
        return BucketCode(replace(self.field, interpolate=0), self.thresholds)

    def number_ids(self, values: Floats) -> Ids:
        fine = fine_ids(values, self.anchors, self.width)
        if not len(self.alone):
            return spread(fine, self.width)
        found = np.minimum(np.searchsorted(self.alone, values), len(self.alone) - 1)
        behind = (FIRST + len(self.anchors) + found) * self.width
        places = spread(np.where(self.alone[found] == values, behind, fine).astype(np.int32), self.width)
        table = np.array(self.id_of_place, dtype=np.int32)
        return np.where(places < FIRST, places, table[places])

    def finder(self) -> Callable[[float], int]:
        anchors, places, steps = self.anchors, np.arange(len(self.anchors)), self.width
        alone = {value: (FIRST + len(anchors) + place) * steps for place, value in enumerate(self.alone.tolist())}

        def find(number: float) -> int:
            place = FIRST * steps + math.floor(float(np.interp(number, anchors, places)) * steps + 0.5)
            return alone.get(number, place)

        return find

    @property
    def loop(self) -> type[CellLoop] | None:
        return None

    def text_of_id(self, number: int) -> str:
        return f"{self.values[number - FIRST]:g}"

    @property
    def bounds(self) -> Floats:
        return self.thresholds if len(self.thresholds) else self.values


@dataclass
class LogSquareCode(OverWords, NumberCode):
    """The Criteo winners' words for numbers; no row holds these words."""

    field: NumberField
    words: Words

    def number_ids(self, values: Floats) -> Ids:
        return self.words.ids([None if value != value else log_square(value) for value in values.tolist()])

    def finder(self) -> Callable[[float], int]:
        ids = self.words.list_ids
        return lambda number: ids((log_square(number),))[0]


class CellNumbers:
    """The loop over cells of numbers in buckets: all thresholds, and the ids of small whole numbers."""

    def __init__(self, codes: Sequence[BucketCode]) -> None:
        from fieldwise.data.read import cell_id_loops

        self.loop, bounds = cell_id_loops.numbers, [code.thresholds for code in codes]
        self.edges, self.thresholds = np.cumsum([0, *map(len, bounds)]), np.concatenate([*bounds, np.empty(1)])
        whole = np.arange(cell_id_loops.SMALL, dtype=np.float64)
        self.small = np.array([code.number_ids(whole) for code in codes], dtype=np.int32)

    def run(self, cells: Cells, columns: Any, places: Any, ids: Any, left: Any) -> None:
        tables = (self.edges, self.thresholds, self.small)
        self.loop(cells.block, cells.ends, len(cells.names), columns, places, *tables, ids, left)


def as_number(text: str | None) -> float | None:
    """The number of a text, NaN for a missing one, None for what is no number.

    >>> as_number("1e3"), as_number("NA"), as_number("cheap")
    (1000.0, nan, None)
    """
    if not text or text in NO_NUMBER:
        return math.nan
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def log_square(value: float) -> str:
    """The Criteo winners' buckets: floor(ln(v)^2) above 2, else the integer itself."""
    if math.isinf(value):
        return str(value)
    return str(math.floor(math.log(value) ** 2)) if value > 2 else f"SP{math.floor(value)}"
