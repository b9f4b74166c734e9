"""Pasts: what earlier rows with the same key had in a column, the newest first.

A row's own cells do not say what came before it: data/history/sequences.py keeps that, and gives the ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.kinds.counted import Counted
from fieldwise.data.kinds.kind import BY_CELL, FIRST, MISSING, PAD, Code, Field, Ids

# As in a history: what held-out rows see, and the name of a time that stands for the order of the rows.
VIEWS, ROW_ORDER = ("frozen", "rolling"), "row"
# The powers of two between which gaps are told apart.
LOWEST, HIGHEST = -10, 40
# What earlier rows say besides the values of a field, each a setting and the word that asks for it; and their fields.
ALONE = {"responses": "response", "gaps": "gap"}
GRAMMAR = re.compile(r"(?P<of>\S.*?)\s+by\s+(?P<by>\S+)(?P<rest>(\s+\S+)*)\s*")


@dataclass(frozen=True, init=False)
class PastField(Field):
    """The values of field `of` in the newest `last` earlier rows with the same `by`, a column or a cross of some.

    It has the ids and the vectors of that field; or, with `gaps`, ids of how long ago these rows came, with `responses`
    of whether they had one. `time` is the column that orders the rows, or `row`. A row sees what came strictly before
    it, later than `delay` ago not yet and longer than `window` ago no more, in the column's own units (seconds for
    dates); with `positives` only rows with a response, with `negatives` only those without. `view` is what held-out
    rows see, as in a history. At most `most_rows` rows are kept; beyond these the keys that were idle longest are
    dropped.
    """

    kind: ClassVar = "past"
    history_key: ClassVar = BY_CELL
    least: ClassVar = {"last": 1, "delay": 0, "window": 0, "most_rows": 1000}
    of: str = ""
    by: str = ""
    gaps: bool = False
    responses: bool = False
    last: int = 50
    time: str = ""
    positives: bool = False
    negatives: bool = False
    delay: float = 0.0
    window: float = 0.0
    view: str = VIEWS[0]
    most_rows: int = 20_000_000

    def check(self) -> None:
        super().check()
        what = [repr(self.of)] * bool(self.of) + [name for name in ALONE if getattr(self, name)]
        for name in ("of", "by"):
            if not getattr(self, name) and not (name == "of" and what):
                raise ConfigError(f"field '{self.name}': a past needs {name} = \"COLUMN\"")
        if len(what) > 1:
            found = " and ".join(what)
            raise ConfigError(f"field '{self.name}': a past is of a field, or has gaps, or responses, found {found}")
        rows = [name for name in ("positives", "negatives", "responses") if getattr(self, name)]
        if len(rows) > 1:
            found = " and ".join(rows)
            raise ConfigError(f"field '{self.name}': a past takes positives, negatives or responses, found {found}")
        if not all(self.by.split("*")) or len(set(self.by.split("*"))) < len(self.by.split("*")):
            found = f"found '{self.by}'"
            raise ConfigError(f"field '{self.name}': by takes a column or a cross such as user*item, {found}")
        if self.view not in VIEWS:
            raise ConfigError(f"field '{self.name}': " + unknown("view", self.view, VIEWS))

    @property
    def column(self) -> str:
        return self.by.split("*")[0]

    @property
    def columns(self) -> list[str]:
        return [*self.columns_needed, *([self.clock] if self.clock else [])]

    @property
    def columns_needed(self) -> list[str]:
        return self.by.split("*")

    @property
    def clock(self) -> str:
        """The column that holds a row's moment; empty where the order is the time."""
        return "" if self.time == ROW_ORDER else self.time

    @property
    def shares(self) -> str:
        return self.of

    @property
    def key(self) -> str:
        return self.by

    @property
    def sequence(self) -> str:
        rows = self.by, self.last, self.positives, self.negatives, self.most_rows
        return repr((*rows, self.time, self.delay, self.window, self.view))

    @property
    def why_always_known(self) -> str:
        return f"its values are those of '{self.of}'" if self.of else "its values are known beforehand"

    def check_owner(self, fields: Mapping[str, Field]) -> None:
        if not self.time:
            way_out = 'set time = "COLUMN", or time = "row" for the order of the rows'
            raise ConfigError(f"field '{self.name}': earlier rows need a time, found none; {way_out}")
        owner = fields.get(self.of)
        if not self.of:
            return
        if owner is None:
            raise ConfigError(f"field '{self.name}': " + unknown("field", self.of, fields))
        if owner.shares or owner.sequence or owner.interpolate or owner.kind == "set":
            found = "interpolated" if owner.interpolate else owner.kind
            raise ConfigError(f"field '{self.name}': of takes a field with one id in a row, found '{self.of}', {found}")

    def fit(self, column: Counted) -> Code:
        return self.load([], {})

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        return ResponseCode(self) if self.responses else GapCode(self)

    def fit_over(self, owner: Code, column: Counted | None) -> Code:
        return PastCode(self, owner)

    def over(self, owner: Code, width: int) -> Code:
        return PastCode(self, owner)


class LogCode(Code):
    """A code of earlier rows. What it gives for a row's own cells is a row without any."""

    field: PastField

    def ids(self, texts: Sequence[str | None]) -> Ids:
        return np.tile(np.array([MISSING, *[PAD] * (self.width - 1)], dtype=np.int32), (len(texts), 1))

    def column_ids(self, column: pa.ChunkedArray) -> Ids:
        return self.missing(len(column))


@dataclass
class ResponseCode(LogCode):
    """Whether earlier rows had a response."""

    field: PastField

    def __post_init__(self) -> None:
        self.width = self.field.last

    @property
    def size(self) -> int:
        return FIRST + 2

    def of_labels(self, labels: NDArray[Any]) -> Ids:
        """The ids (n,) of labels (n,)."""
        return np.asarray(FIRST + (np.asarray(labels) > 0), dtype=np.int32)

    def text_of_id(self, number: int) -> str:
        return ("without", "with")[number - FIRST] + " a response"


@dataclass
class GapCode(LogCode):
    """How long ago earlier rows came: buckets that double, from 1/1024 to 2^40 of the time's units."""

    field: PastField

    def __post_init__(self) -> None:
        self.width = self.field.last

    @property
    def size(self) -> int:
        return FIRST + HIGHEST - LOWEST + 1

    def of_ages(self, ages: NDArray[np.float64]) -> Ids:
        """The ids (n, N) of ages (n, N); 0 marks a place without a row."""
        there = ages > 0
        powers = np.floor(np.log2(np.where(there, ages, 1.0)))
        ids = np.where(there, FIRST + np.clip(powers, LOWEST, HIGHEST) - LOWEST, PAD).astype(np.int32)
        ids[~there[:, 0], 0] = MISSING
        return ids

    def text_of_id(self, number: int) -> str:
        return f"{2.0 ** (number - FIRST + LOWEST):g} ago"


@dataclass
class PastCode(LogCode):
    """The ids of the owner's code in earlier rows."""

    field: PastField
    owner: Code

    def __post_init__(self) -> None:
        if self.owner.width != 1:
            raise ValueError(f"field '{self.owner.field.name[:100]}' has {self.owner.width} ids in a row: no sequence")
        self.width, self.first_size = self.field.last, self.owner.first_size

    @property
    def size(self) -> int:
        return self.owner.size

    def text_of_id(self, number: int) -> str:
        return self.owner.text_of_id(number)


def pasts(text: str) -> list[PastField]:
    """The fields that the command line asks for.

    >>> [one.name for one in pasts("item, category by user last 50 positives")]
    ['item by user positives', 'category by user positives']
    """
    found = GRAMMAR.fullmatch(text.strip())
    if found is None:
        example = "item,category by user last 50"
        raise ConfigError(f"--sequence takes COLUMNS by KEY and settings, such as '{example}', found '{text}'")
    names = [name.strip() for name in found["of"].split(",") if name.strip()]
    by, settings = found["by"], _settings(found["rest"].split(), text)
    alone = [word for word in ALONE if settings.pop(word, False)]
    # What tells two sequences of one column apart is part of its name.
    told = f"by {by}" + "".join(f" {word}" for word in ("positives", "negatives") if settings.get(word))
    told += "".join(f" {word} {settings[word]:g}" for word in ("delay", "window") if settings.get(word))
    fields = [PastField(f"{name} {told}", of=name, by=by, **settings) for name in names]
    return [*fields, *(PastField(f"{ALONE[word]} {told}", by=by, **settings | {word: True}) for word in alone)]


def _settings(words: list[str], text: str) -> dict[str, Any]:
    """`last 50 positives delay 3600` as settings."""
    kinds: dict[str, Any] = {"last": int, "time": str, "delay": float, "window": float, "view": str, "most_rows": int}
    words_alone = ("positives", "negatives", *ALONE)
    settings: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if word in words_alone:
            settings[word] = True
            continue
        if word not in kinds:
            raise ConfigError(unknown("setting of --sequence", word, (*kinds, *words_alone)))
        value = next(left, "")
        try:
            settings[word] = kinds[word](value)
        except ValueError:
            raise ConfigError(f"--sequence: {word} takes a number, found '{value}' (in '{text}')") from None
    return settings
