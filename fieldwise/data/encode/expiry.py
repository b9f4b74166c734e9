"""After how long a value that is not seen any more loses its id: what `--expire-after` says, for all fields or one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.encode.staged import staged_chunks, staged_schema
from fieldwise.data.kinds.category import WordField
from fieldwise.data.kinds.kind import Field
from fieldwise.data.kinds.time import TimeField
from fieldwise.data.read.moments import seconds
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import Schema

NEVER = "never"
SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
# Rows of a chunk that say what time it is.
LOOKED_AT = 1000
GRAMMAR = re.compile(r"(?P<number>\d{1,9}(\.\d{1,9})?)(?P<unit>[hdw]?)")


@dataclass(frozen=True)
class Age:
    """A number of folders, or of seconds."""

    number: float
    in_seconds: bool


def age_of(text: str) -> Age | None:
    """What a text says; None where values never expire.

    >>> age_of("30"), age_of("2d"), age_of("never")
    (Age(number=30.0, in_seconds=False), Age(number=172800.0, in_seconds=True), None)
    """
    if text == NEVER:
        return None
    found = GRAMMAR.fullmatch(text)
    number = float(found["number"]) if found else 0.0
    if not number > 0 or not ((found and found["unit"]) or number.is_integer()):
        way_out = "a time such as 30d, 12h or 4w, a number of folders such as 30, or never"
        raise ConfigError(f"--expire-after takes {way_out}, found '{text}'")
    assert found is not None
    return Age(number * SECONDS.get(found["unit"], 1.0), bool(found["unit"]))


@dataclass(frozen=True)
class Expiry:
    """What was said, such as ("30d", "user=60d"): the age of all fields, and those of some."""

    said: tuple[str, ...] = ()
    ages: Mapping[str, Age | None] = field(init=False)

    def __post_init__(self) -> None:
        ages: dict[str, Age | None] = {}
        for text in self.said:
            name, _, age = text.rpartition("=")
            if name in ages:
                what = f"field '{name}'" if name else "all fields"
                raise ConfigError(f"--expire-after says twice when values of {what} expire, found '{text}'")
            ages[name] = age_of(age)
        object.__setattr__(self, "ages", ages)

    def of(self, field: Field) -> Age | None:
        """The age at which a field's values expire; None where they never do."""
        return None if why_never(field) else self.ages.get(field.name, self.ages.get(""))

    def check(self, schema: Schema) -> None:
        """Refuses fields without values that can expire, and what trees or the lack of a time make impossible."""
        for name in filter(None, self.ages):
            found = next((field for field in schema.fields if field.name == name), None)
            if found is None:
                raise ConfigError(f"--expire-after: {unknown('field', name, schema.names)}")
            if why := why_never(found):
                raise ConfigError(f"--expire-after: the values of '{name}' cannot expire: {why}; leave it out")
        ages = [age for age in map(self.of, schema.fields) if age]
        if any(self.ages.values()) and not ages:
            raise ConfigError("--expire-after: no field has values that can expire; leave it out")
        if ages and schema.gbdt_leaves:
            raise ConfigError(
                "--expire-after: the trees of --gbdt-leaves know values by their ids; leave one of them out"
            )
        if any(age.in_seconds for age in ages) and clock_of(schema) is None:
            way_out = "name a number of folders, such as 30"
            raise ConfigError(f"--expire-after takes a time only where a field is one, found none; {way_out}")


def why_never(field: Field) -> str:
    """Why the values of a field never expire; empty where they can."""
    if field.shares:
        return f"its ids are those of '{field.shares}', which expire where both do not have them"
    if field.role:
        return "a position is fixed at one of them when rows are served"
    if not isinstance(field, WordField):
        return f"a {field.kind} field has no vocabulary"
    return field.why_always_known


def clock_of(schema: Schema) -> TimeField | None:
    """The field whose column says when rows came."""
    return next((field for field in schema.fields if isinstance(field, TimeField)), None)


def middle_of(part: Path, clock: TimeField) -> float:
    """The moment in the middle of a staged part's rows, in seconds; NaN without any. One wrong time changes little."""
    found = []
    for chunk in staged_chunks(part, [clock.column]) if clock.column in staged_schema(part).names else ():
        some = chunk[clock.column].take(np.arange(0, len(chunk), max(1, len(chunk) // LOOKED_AT)))
        texts, places = texts_of(some)
        found.append(seconds(texts, clock.format)[places])
    times = np.concatenate([*found, np.empty(0)])
    return float(np.nanmedian(times)) if np.isfinite(times).any() else math.nan
