"""What the columns are: fields and their kinds, written down or inferred, kept in schema.toml."""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fieldwise.config.errors import TYPES, ConfigError, unknown
from fieldwise.config.toml import dumps
from fieldwise.data.kinds.kind import (
    FIRST,
    KINDS,
    MISSING,
    OTHER,
    PAD,
    POSITION,
    Field,
    check_steps,
    kind_named,
    setting_types,
)
from fieldwise.data.kinds.past import PastField
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.labels import Classes

__all__ = ["FIRST", "MISSING", "OTHER", "PAD", "Field", "HistorySettings", "Layout", "Schema", "history_settings"]

# A history key that stands for others, which prepare proposes, and how many of them it is without a number.
AUTO, AUTO_KEYS = "auto", 10
# What TOML has for the types of settings; all other ones are lists.
TOML_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "str": str, "bool": bool, "float": (int, float)}
HISTORY_PARTS = ("count", "positives", "rate")
# The name of a time column that stands for the order of the rows.
ROW_ORDER = "row"


@dataclass(frozen=True)
class Layout:
    """The shape of encoded rows: how many categories and how many id columns each field has.

    `ordered` are the fields whose ids, from 2 on, rise with their values: numbers in buckets, or between anchors where
    they have several columns. `first_sizes` are the sizes before vocabularies grew, where they did: what follows the
    sizes, as adaptive vectors do, must stay. `ranked` are the fields whose numbers trees read as finer ranks, in a
    column each behind all others; networks have the layout without them. `like` names for each field the one whose
    vectors it has, itself where these are its own; empty where all are. `sequences` are fields whose columns are
    places in time, the newest first; those of one group are what the same rows had in several columns.

    >>> layout = Layout((3, 5, 4), (1, 2, 1))
    >>> layout.rows, layout.columns, layout.column_fields, layout.column_offsets
    (12, 4, [0, 1, 1, 2], [0, 3, 3, 8])
    >>> replace(layout, ranked=(0,)).column_fields, replace(layout, ranked=(0,)).columns_of([0])
    ([0, 1, 1, 2, 0], [0, 4])
    >>> shared = Layout((3, 5, 3), (1, 1, 4), like=(0, 1, 0), sequences=((2,),))
    >>> shared.rows, shared.offsets, shared.apart.offsets
    (8, [0, 3, 0], [0, 3, 8])
    """

    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    ordered: tuple[int, ...] = ()
    first_sizes: tuple[int, ...] = ()
    ranked: tuple[int, ...] = ()
    like: tuple[int, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Layout:
        """A layout without set fields."""
        return cls(tuple(sizes), (1,) * len(sizes))

    @property
    def without_ranks(self) -> Layout:
        """What networks read."""
        return replace(self, ranked=()) if self.ranked else self

    @property
    def apart(self) -> Layout:
        """The layout in which no field shares another's rows."""
        return replace(self, like=()) if self.like else self

    @property
    def owners(self) -> tuple[int, ...]:
        """For each field the one whose rows it looks up."""
        return self.like or tuple(range(self.fields))

    @property
    def id_columns(self) -> int:
        """How many columns a row has before the ranks."""
        return sum(self.widths)

    def followed_by(self, sizes: Sequence[int], ordered: bool, width: int = 1) -> Layout:
        """The layout with further fields at the end, all of one width."""
        new = range(self.fields, self.fields + len(sizes))
        more = (self.sizes + tuple(sizes), self.widths + (width,) * len(sizes))
        first = self.first_sizes + tuple(sizes) if self.first_sizes else ()
        like = (*self.like, *new) if self.like else ()
        return Layout(*more, self.ordered + (tuple(new) if ordered else ()), first, self.ranked, like, self.sequences)

    def only(self, fields: Sequence[int]) -> Layout:
        """The layout of some of the fields."""
        kinds = frozenset(self.ordered), frozenset(self.ranked)
        ordered, ranked = (tuple(place for place, f in enumerate(fields) if f in known) for known in kinds)
        sizes, widths = (tuple(of[f] for f in fields) for of in (self.sizes, self.widths))
        first = tuple(self.first_sizes[f] for f in fields if self.first_sizes)
        places = {field: place for place, field in enumerate(fields)}
        # A field whose owner is not among them has rows of its own.
        like = tuple(places.get(self.owners[f], place) for f, place in places.items())
        groups = [tuple(places[f] for f in group if f in places) for group in self.sequences]
        shared = like if like != tuple(range(len(fields))) else ()
        return Layout(sizes, widths, ordered, first, ranked, shared, tuple(group for group in groups if group))

    def columns_of(self, fields: Sequence[int]) -> list[int]:
        """The columns of some of the fields."""
        starts = [0, *itertools.accumulate(self.widths)]
        ranks = {field: starts[-1] + place for place, field in enumerate(self.ranked)}
        own = [column for field in fields for column in range(starts[field], starts[field + 1])]
        return own + [ranks[field] for field in fields if field in ranks]

    @property
    def fields(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        return sum(size for field, size in enumerate(self.sizes) if self.owners[field] == field)

    @property
    def columns(self) -> int:
        return self.id_columns + len(self.ranked)

    @property
    def has_sets(self) -> bool:
        """Whether a field has several ids, or those of another field."""
        return self.id_columns > self.fields or bool(self.like)

    @property
    def offsets(self) -> list[int]:
        """The first row of each field in a table of all of them."""
        owners = self.owners
        own = [size if owners[field] == field else 0 for field, size in enumerate(self.sizes)]
        starts = [0, *itertools.accumulate(own)]
        return [starts[owner] for owner in owners]

    @property
    def column_fields(self) -> list[int]:
        return [*(field for field, width in enumerate(self.widths) for _ in range(width)), *self.ranked]

    @property
    def column_offsets(self) -> list[int]:
        offsets = self.offsets
        return [offsets[field] for field in self.column_fields]


# What held-out rows see of a history with a time.
VIEWS = ("frozen", "rolling")


@dataclass(frozen=True)
class HistorySettings:
    """Which keys have a history, and how it is counted: see data/history/history.py.

    `keys` are columns, or crosses like `user*item`; `auto`, or `auto:8`, stands for up to that many, which prepare
    proposes and writes in its place (data/encode/propose_history.py). `strength` rows of the overall rate are added to
    each rate; `most_keys` bounds the memory, about 64 bytes for each. Each key adds the fields named in `parts`, in
    buckets, or, with `interpolate` M > 0, between anchors in steps of 1/M. With a time, held-out rows have the `view`
    that predictions will have: `frozen` after the training rows, as in `predict`, or `rolling`, as in a server that
    counts what comes.
    """

    keys: tuple[str, ...] = ()
    time: str = ""
    delay: float = 0.0
    window: float = 0.0
    half_life: float = 0.0
    folds: int = 10
    group: tuple[str, ...] = ()
    strength: float = 10.0
    most_keys: int = 20_000_000
    seed: int = 0
    parts: tuple[str, ...] = HISTORY_PARTS
    interpolate: int = 0
    view: str = VIEWS[0]

    def __post_init__(self) -> None:
        check_steps("history", self.interpolate)
        if self.view not in VIEWS:
            raise ConfigError(unknown("history view", self.view, VIEWS))
        for part in self.parts:
            if part not in HISTORY_PARTS:
                raise ConfigError(unknown("history part", part, HISTORY_PARTS))
        if not self.parts or len(set(self.parts)) < len(self.parts):
            known, found = (", ".join(parts) for parts in (HISTORY_PARTS, self.parts))
            raise ConfigError(f"history parts takes one or more of {known}, found {found or 'none'}")
        automatic = [key for key in self.keys if _is_auto(key)]
        if len(automatic) > 1:
            raise ConfigError(f"history takes auto once, found {', '.join(self.keys)}")
        for key in automatic:
            if not _auto_keys(key):
                raise ConfigError(f"history auto takes a number of keys of 1 or more, such as auto:8, found '{key}'")
        times = Counter(self.keys)
        for key in self.named:
            if not all(key.split("*")) or len(set(key.split("*"))) < len(key.split("*")):
                raise ConfigError(f"history takes columns and crosses of them such as user*item, found '{key}'")
            if times[key] > 1:
                raise ConfigError(f"history keys must differ, found '{key}' {times[key]} times")
        for name in ("delay", "window", "half_life", "seed"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"history {name} must be 0 or more, found {getattr(self, name)}")
            if name in ("delay", "window", "half_life") and getattr(self, name) and not self.time:
                raise ConfigError(f"history {name} needs a time column: set history time")
        if self.window and self.half_life:
            raise ConfigError("history takes a window or a half_life, found both")
        if self.time and self.group:
            raise ConfigError("history takes a time column or a group for its folds, found both")
        if self.folds < 0 or self.folds == 1 or not self.strength > 0 or self.most_keys < 1000:
            found = f"{self.folds}, {self.strength}, {self.most_keys}"
            raise ConfigError(
                f"history needs folds of 2 or more or 0, strength above 0, most_keys of 1000 or more, found {found}"
            )
        if self.proposals and not self.folds:
            raise ConfigError("history auto needs folds of 2 or more, found 0; name the keys")

    @property
    def named(self) -> tuple[str, ...]:
        """The keys without `auto`."""
        return tuple(key for key in self.keys if not _is_auto(key))

    @property
    def proposals(self) -> int:
        """How many keys `auto` may stand for; 0 where it is not among the keys."""
        return sum(_auto_keys(key) for key in self.keys if _is_auto(key))

    @property
    def columns(self) -> list[str]:
        """The columns that the keys are made of."""
        return list(dict.fromkeys(name for key in self.named for name in key.split("*")))

    @property
    def clock(self) -> str:
        """The column that holds a row's moment; empty where the order is the time, or there is none."""
        return "" if self.time == ROW_ORDER else self.time

    @property
    def columns_needed(self) -> list[str]:
        """The columns that a history needs: those of the keys, of the groups, and of the time."""
        return [name for name in dict.fromkeys([*self.columns, *self.group, self.clock]) if name]


def _is_auto(key: str) -> bool:
    return key.partition(":")[0] == AUTO


def _auto_keys(key: str) -> int:
    """The number in `auto:8`, or that of `auto` alone; 0 where it is no such number."""
    _, colon, number = key.partition(":")
    return AUTO_KEYS if not colon else int(number) if number.isdecimal() else 0


def history_settings(keys: str, given: Sequence[str] = ()) -> HistorySettings:
    """Settings from the command line: keys such as `user,user*item`, and NAME=VALUE for the rest.

    With a time the parts are rates alone, unless they are named: counts grow as a log does, so that late rows have
    counts that early rows never had (docs/drift.md has the measurement).

    >>> history_settings("user, user*item", ["time=hour", "delay=2"]).parts
    ('rate',)
    """
    values: dict[str, Any] = {"keys": tuple(key.replace(" ", "") for key in keys.split(",") if key.strip())}
    kinds = {f.name: str(f.type) for f in dataclasses.fields(HistorySettings) if f.name != "keys"}
    read: dict[str, Any] = {"int": int, "float": float, "str": str}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or name not in kinds:
            raise ConfigError(unknown("history setting", name, kinds) + "; write NAME=VALUE")
        try:
            values[name] = read.get(kinds[name], lambda t: tuple(t.split(",")))(text)
        except ValueError:
            raise ConfigError(f"history {name} must be a number, found '{text}'") from None
    if values.get("time") == "none":
        values["time"] = ""
    if values.get("time"):
        values.setdefault("parts", ("rate",))
    return HistorySettings(**values)


@dataclass(frozen=True)
class Schema:
    """The label column and the fields, in the order of the encoded columns.

    `history` adds fields of what came before;
    `gbdt_leaves` trees of `gbdt_depth`, fitted on the training rows, add a field each: the leaf of the row.
    `recipe` names how raw files are read (data/recipes/). `positive` and `negative` are the label's two values where
    they are not 0 and 1.
    """

    label: str
    fields: tuple[Field, ...]
    weight: str = ""
    gbdt_leaves: int = 0
    gbdt_depth: int = 7
    history: HistorySettings = HistorySettings()
    recipe: str = ""
    positive: str = ""
    negative: str = ""

    def __post_init__(self) -> None:
        if bool(self.positive) != bool(self.negative):
            raise ConfigError(f"a label has a positive and a negative value, found '{self.positive or self.negative}'")
        names = self.names
        if not names:
            raise ConfigError("a schema needs at least one field, found none")
        check_names(names)
        for name in (*names, *(name for field in self.fields for name in field.columns)):
            if name and name in (self.label, self.weight):
                raise ConfigError(f"'{name}' is the label or weight column and cannot be a field too")
        for field in self.fields:
            if isinstance(field, PastField) and field.of == self.label:
                way_out = "responses = true (--sequence: the word responses) is what became of earlier rows"
                raise ConfigError(f"field '{field.name}': of takes a field, found the label '{field.of}'; {way_out}")
            if field.shares or field.key:
                field.check_owner({one.name: one for one in self.fields})
        views = {field.view for field in self.fields if isinstance(field, PastField)}
        views |= {self.history.view} if self.history.keys and self.history.time else set()
        if len(views) > 1:
            raise ConfigError("held-out rows have one view of the past, history and sequences alike, found both")
        if self.gbdt_leaves < 0 or self.gbdt_depth < 1:
            found = f"{self.gbdt_leaves} trees of depth {self.gbdt_depth}"
            raise ConfigError(f"gbdt_leaves takes 0 or more trees of depth 1 or more, found {found}")
        self._check_positions()

    def _check_positions(self) -> None:
        if len(self.positions) == len(self.fields):
            raise ConfigError(f"a schema needs a field that is no position, found {', '.join(self.positions)} alone")
        for name in self.positions:
            if name in self.history.columns:
                raise ConfigError(f"the position '{name}' is fixed in service and cannot be part of a history key")

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def without(self, names: Collection[str]) -> Schema:
        """The schema without some of its fields."""
        kept = [field for field in self.fields if field.name not in names and field.column not in names]
        return dataclasses.replace(self, fields=tuple(kept))

    @property
    def positions(self) -> list[str]:
        """The names of the fields that say where a row was shown; they are fixed when rows are served."""
        return [field.name for field in self.fields if field.role == POSITION]

    def with_position(self, name: str) -> Schema:
        """The schema whose field of this name is a position; one that has no such field is refused."""
        if not name:
            return self
        if name not in self.names:
            raise ConfigError(unknown("position column", name, self.names))
        fields = [replace(field, role=POSITION) if field.name == name else field for field in self.fields]
        return replace(self, fields=tuple(fields))

    @property
    def columns(self) -> list[str]:
        """The columns that rows to predict for should have: the fields' and those of the history."""
        own = [name for field in self.fields for name in field.columns]
        return list(dict.fromkeys([*own, *(name for name in (*self.history.columns, self.history.clock) if name)]))

    @property
    def optional(self) -> set[str]:
        """The columns that rows to predict for may lack; their values are missing then."""
        # Of a position no value is needed: it is fixed in what is served.
        asked = [field for field in self.fields if not field.may_be_absent and not field.role]
        needed = {name for field in asked for name in field.columns_needed}
        return set(self.columns) - needed - set(self.history.columns)

    @property
    def pasts(self) -> dict[str, str]:
        """The fields that are made of earlier rows, and the key that these have in common."""
        return {field.name: field.key for field in self.fields if field.key}

    @property
    def lost_pasts(self) -> dict[str, str]:
        """Those of them that a row with a new key has nothing of: in a rolling view it has what came since."""
        return {name: key for name, key in self.pasts.items() if self.view == VIEWS[0]}

    @property
    def view(self) -> str:
        """What held-out rows see of the past."""
        views = [field.view for field in self.fields if isinstance(field, PastField)]
        return views[0] if views else self.history.view

    @property
    def counts_rows(self) -> bool:
        """Whether fields are made of earlier rows: of their counts, or of their values."""
        return bool(self.history.keys or self.pasts)

    @property
    def ordered(self) -> tuple[int, ...]:
        return tuple(number for number, field in enumerate(self.fields) if field.ordered)

    @property
    def classes(self) -> Classes:
        """The two values of the label."""
        return Classes(self.negative, self.positive)

    @property
    def numbers(self) -> set[str]:
        """The names of the fields whose cells must be numbers."""
        return {field.name for field in self.fields if field.is_number}

    def to_toml(self) -> str:
        """The schema as text; settings that keep their default are left out."""
        tables = [{"name": field.name, "kind": field.kind, **field.settings} for field in self.fields]
        head: dict[str, Any] = {"label": self.label} | ({"weight": self.weight} if self.weight else {})
        head |= {"positive": self.positive, "negative": self.negative} if self.positive else {}
        if self.recipe:
            head |= {"recipe": self.recipe}
        if self.gbdt_leaves:
            head |= {"gbdt_leaves": self.gbdt_leaves, "gbdt_depth": self.gbdt_depth}
        if self.history.keys:
            default = dataclasses.asdict(HistorySettings())
            past = dataclasses.asdict(self.history).items()
            head |= {"history": {k: v for k, v in past if v != default[k]}}
        return dumps(head | {"field": tables})

    # A comparison opens the same few folders again and again.
    @classmethod
    @lru_cache(maxsize=16)
    def from_toml(cls, text: str, where: str) -> Schema:
        """Reads `to_toml`'s text; unknown keys are refused with the nearest name."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not a TOML file: {error} ({where})") from None
        try:
            return cls._from_values(values)
        except ConfigError as error:
            raise ConfigError(f"{error} ({where})") from None

    @classmethod
    def _from_values(cls, values: dict[str, Any]) -> Schema:
        tables, history = values.pop("field", []), values.pop("history", {})
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"each field is a table [[field]], found field = {tables!r}")
        if not isinstance(history, dict):
            raise ConfigError(f"history is a table [history], found history = {history!r}")
        head = dict.fromkeys(("label", "weight", "recipe", "positive", "negative"), "str")
        head |= {"gbdt_leaves": "int", "gbdt_depth": "int"}
        check_keys(values, head, "schema setting")
        check_keys(history, {one.name: str(one.type) for one in dataclasses.fields(HistorySettings)}, "history setting")
        known = {kind: {"kind": "str", **setting_types(kind)} for kind in KINDS}
        for table in tables:
            if "name" not in table:
                raise ConfigError("each [[field]] needs a name")
            # First the kind: the settings of one that is not known are not known either.
            kind = kind_named(str(table.get("kind", "categorical")), str(table["name"])).kind
            if isinstance(table.get("at"), (int, float)):
                table["at"] = text_of(table["at"])  # a position is a number more often than not
            check_keys(table, known[kind], "field setting")
        if "label" not in values:
            raise ConfigError('a schema needs label = "COLUMN"')
        past = HistorySettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in history.items()})  # type: ignore[arg-type]
        return cls(fields=tuple(Field(**table) for table in tables), history=past, **values)

    @classmethod
    def load(cls, path: Path) -> Schema:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the schema: {error} ({path})") from None
        return cls.from_toml(text, str(path))


def check_names(names: list[str]) -> None:
    """Refuses two fields of one name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f"field names must differ, found '{name}' {times} times")


def check_keys(values: dict[str, Any], known: dict[str, str], kind: str) -> None:
    """Refuses unknown keys, and values that are not of the type whose name is known."""
    for key, value in values.items():
        if key not in known:
            raise ConfigError(unknown(kind, key, known))
        expected = TOML_TYPES.get(known[key], list)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ConfigError(f"{kind} '{key}' must be {TYPES[expected]}, found {value!r}")
