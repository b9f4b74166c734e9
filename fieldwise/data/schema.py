"""What the columns are: fields and their kinds, written down or inferred, kept in schema.toml."""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.toml import dumps

# The ids of every field: 0 is a missing value, 1 is `other`, its own values follow; -1 is an unused place of a set.
MISSING, OTHER, FIRST, PAD = 0, 1, 2, -1
KINDS = ("categorical", "numeric", "set")
# Ids are int32, and two of them are taken.
LARGEST_HASH = 2**31 - 3
BUCKETS = ("quantile", "count", "log-square", "explicit", "tree")
# A history key that stands for others, which prepare proposes, and how many of them it is without a number.
AUTO, AUTO_KEYS = "auto", 10
LEAST = {"min_count": 1, "hash_buckets": 0, "shared_ids": 0, "max_values": 1, "max_buckets": 2, "bucket_count": 1}
MOST_STEPS = 64
HISTORY_PARTS = ("count", "positives", "rate")


@dataclass(frozen=True)
class Layout:
    """The shape of encoded rows: how many categories and how many id columns each field has.

    `ordered` are the fields whose ids, from 2 on, rise with their values: numbers in buckets, or between anchors where
    they have several columns. `first_sizes` are the sizes before vocabularies grew, where they did: what follows the
    sizes, as adaptive vectors do, must stay.

    >>> layout = Layout((3, 5, 4), (1, 2, 1))
    >>> layout.rows, layout.columns, layout.column_fields, layout.column_offsets
    (12, 4, [0, 1, 1, 2], [0, 3, 3, 8])
    """

    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    ordered: tuple[int, ...] = ()
    first_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Layout:
        """A layout without set fields."""
        return cls(tuple(sizes), (1,) * len(sizes))

    def followed_by(self, sizes: Sequence[int], ordered: bool, width: int = 1) -> Layout:
        """The layout with further fields at the end, all of one width."""
        new = range(self.fields, self.fields + len(sizes))
        more = (self.sizes + tuple(sizes), self.widths + (width,) * len(sizes))
        first = self.first_sizes + tuple(sizes) if self.first_sizes else ()
        return Layout(*more, self.ordered + (tuple(new) if ordered else ()), first)

    def only(self, fields: Sequence[int]) -> Layout:
        """The layout of some of the fields."""
        known = set(self.ordered)
        ordered = tuple(place for place, f in enumerate(fields) if f in known)
        sizes, widths = (tuple(of[f] for f in fields) for of in (self.sizes, self.widths))
        return Layout(sizes, widths, ordered, tuple(self.first_sizes[f] for f in fields if self.first_sizes))

    def columns_of(self, fields: Sequence[int]) -> list[int]:
        """The id columns of some of the fields."""
        starts = [0, *itertools.accumulate(self.widths)]
        return [column for field in fields for column in range(starts[field], starts[field + 1])]

    @property
    def fields(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    @property
    def columns(self) -> int:
        return sum(self.widths)

    @property
    def has_sets(self) -> bool:
        return self.columns > self.fields

    @property
    def offsets(self) -> list[int]:
        return [0, *itertools.accumulate(self.sizes)][:-1]

    @property
    def column_fields(self) -> list[int]:
        return [field for field, width in enumerate(self.widths) for _ in range(width)]

    @property
    def column_offsets(self) -> list[int]:
        offsets = self.offsets
        return [offsets[field] for field in self.column_fields]


def check_steps(where: str, steps: int) -> None:
    """Refuses interpolation in more steps than a row should have columns for."""
    if not 0 <= steps <= MOST_STEPS:
        raise ConfigError(f"{where}: interpolate takes 1 to {MOST_STEPS} steps, or 0 for none, found {steps}")


@dataclass(frozen=True)
class Field:
    """One field. Which settings matter depends on the kind.

    categorical, set: `min_count` occurrences in the training rows earn a value an id of its own, the rest
    share `other`; `hash_buckets` > 0 hashes values into so many ids instead; with `shared_ids` > 0 values that earned
    an id share it with those of the same hash modulo so many. set: `separator` stands between
    the values of a cell; at most `max_values` of them count. numeric: `buckets` says how thresholds are
    found (`quantile`: `max_buckets` of equal frequency; `count`: a threshold whenever more than `bucket_count`
    rows have passed; `log-square`: floor(ln(v)^2) above 2; `explicit`: `thresholds` as given; `tree`: at most
    `max_buckets`, of `bucket_count` rows or more, that predict the label best). `interpolate` M > 0: a number has
    the vectors of the two nearest buckets, mixed by its place between their medians in steps of 1/M.
    """

    name: str
    kind: str = "categorical"
    min_count: int = 2
    hash_buckets: int = 0
    separator: str = "|"
    max_values: int = 32
    buckets: str = "quantile"
    max_buckets: int = 64
    bucket_count: int = 20
    thresholds: tuple[float, ...] = ()
    interpolate: int = 0
    shared_ids: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"field '{self.name}': " + unknown("kind", self.kind, KINDS))
        if self.buckets not in BUCKETS:
            raise ConfigError(f"field '{self.name}': " + unknown("buckets", self.buckets, BUCKETS))
        for setting, least in LEAST.items():
            if getattr(self, setting) < least:
                found = getattr(self, setting)
                raise ConfigError(f"field '{self.name}': {setting} must be at least {least}, found {found}")
        if self.hash_buckets > LARGEST_HASH:
            raise ConfigError(
                f"field '{self.name}': hash_buckets must be at most {LARGEST_HASH}, found {self.hash_buckets}"
            )
        if self.kind == "set" and not self.separator:
            raise ConfigError(f"field '{self.name}': a set needs a separator, found an empty one")
        rising = all(low < high for low, high in itertools.pairwise(self.thresholds))
        if self.buckets == "explicit" and not (rising and all(t == t for t in self.thresholds)):
            raise ConfigError(f"field '{self.name}': thresholds must rise, found {list(self.thresholds)}")
        check_steps(f"field '{self.name}'", self.interpolate)
        if self.interpolate and not self.ordered:
            found = "log-square buckets" if self.kind == "numeric" else f"a {self.kind} field"
            raise ConfigError(f"field '{self.name}': interpolate needs a number in ordered buckets, found {found}")

    @property
    def ordered(self) -> bool:
        """Whether ids rise with the values; log-square buckets are words, the most frequent first."""
        return self.kind == "numeric" and self.buckets != "log-square"


@dataclass(frozen=True)
class HistorySettings:
    """Which keys have a history, and how it is told: see data/history/history.py.

    `keys` are columns, or crosses like `user*item`; `auto`, or `auto:8`, stands for up to so many that prepare
    proposes and writes in its place (data/encode/propose_history.py). `strength` rows of the overall rate are added to
    each rate; `most_keys` bounds the memory, about 64 bytes for each. Each key adds the fields named in `parts`, in
    buckets, or, with `interpolate` M > 0, between anchors in steps of 1/M.
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

    def __post_init__(self) -> None:
        check_steps("history", self.interpolate)
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
    if values.get("time"):
        values.setdefault("parts", ("rate",))
    return HistorySettings(**values)


@dataclass(frozen=True)
class Schema:
    """The label column and the fields, in the order of the encoded columns.

    `history` adds fields of what came before;
    `gbdt_leaves` trees of `gbdt_depth`, fitted on the training rows, add a field each: the leaf of the row.
    `recipe` names how raw files are read (data/recipes/).
    """

    label: str
    fields: tuple[Field, ...]
    weight: str = ""
    gbdt_leaves: int = 0
    gbdt_depth: int = 7
    history: HistorySettings = HistorySettings()
    recipe: str = ""

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise ConfigError("a schema needs at least one field, found none")
        check_names(names)
        for name in names:
            if name in (self.label, self.weight):
                raise ConfigError(f"'{name}' is the label or weight column and cannot be a field too")
        if self.gbdt_leaves < 0 or self.gbdt_depth < 1:
            found = f"{self.gbdt_leaves} trees of depth {self.gbdt_depth}"
            raise ConfigError(f"gbdt_leaves takes 0 or more trees of depth 1 or more, found {found}")

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def without(self, names: Collection[str]) -> Schema:
        """The schema without some of its fields."""
        return dataclasses.replace(self, fields=tuple(field for field in self.fields if field.name not in names))

    @property
    def columns(self) -> list[str]:
        """The columns that rows to predict for should have: the fields' and those of the history."""
        more = [*self.history.columns, self.history.time if self.history.time != "row" else ""]
        return list(dict.fromkeys([*self.names, *(name for name in more if name)]))

    @property
    def ordered(self) -> tuple[int, ...]:
        return tuple(number for number, field in enumerate(self.fields) if field.ordered)

    @property
    def numbers(self) -> set[str]:
        """The names of the numeric fields."""
        return {field.name for field in self.fields if field.kind == "numeric"}

    def to_toml(self) -> str:
        """The schema as text; settings that keep their default are left out."""
        usual = {one.name: one.default for one in dataclasses.fields(Field) if one.name not in ("name", "kind")}
        tables = []
        for field in self.fields:
            given = {k: getattr(field, k) for k, default in usual.items() if getattr(field, k) != default}
            tables.append({"name": field.name, "kind": field.kind} | given)
        head: dict[str, Any] = {"label": self.label} | ({"weight": self.weight} if self.weight else {})
        if self.recipe:
            head |= {"recipe": self.recipe}
        if self.gbdt_leaves:
            head |= {"gbdt_leaves": self.gbdt_leaves, "gbdt_depth": self.gbdt_depth}
        if self.history.keys:
            default = dataclasses.asdict(HistorySettings())
            past = dataclasses.asdict(self.history).items()
            head |= {"history": {k: v for k, v in past if v != default[k]}}
        return dumps(head | {"field": tables})

    @classmethod
    def from_toml(cls, text: str, where: str) -> Schema:
        """Reads `to_toml`'s text; unknown keys are refused with the nearest name."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not a TOML file: {error} ({where})") from None
        tables = values.pop("field", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"each field is a table [[field]], found field = {tables!r} ({where})")
        head: dict[str, type | tuple[type, ...]] = {"label": str, "weight": str, "recipe": str}
        head |= {"gbdt_leaves": int, "gbdt_depth": int}
        history = values.pop("history", {})
        if not isinstance(history, dict):
            raise ConfigError(f"history is a table [history], found history = {history!r} ({where})")
        check_keys(values, head, "schema setting", where)
        check_keys(history, _kinds(HistorySettings), "history setting", where)
        kinds = _kinds(Field)
        for table in tables:
            check_keys(table, kinds, "field setting", where)
            if "name" not in table:
                raise ConfigError(f"each [[field]] needs a name ({where})")
            for number in table.get("thresholds", ()):
                if not isinstance(number, (int, float)) or isinstance(number, bool):
                    raise ConfigError(f"field '{table['name']}': thresholds are numbers, found {number!r} ({where})")
            table["thresholds"] = tuple(float(t) for t in table.get("thresholds", ()))
        if "label" not in values:
            raise ConfigError(f'a schema needs label = "COLUMN" ({where})')
        try:
            past = HistorySettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in history.items()})  # type: ignore[arg-type]
            return cls(fields=tuple(Field(**table) for table in tables), history=past, **values)
        except ConfigError as error:
            raise ConfigError(f"{error} ({where})") from None

    @classmethod
    def load(cls, path: Path) -> Schema:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the schema: {error} ({path})") from None
        return cls.from_toml(text, str(path))


def _kinds(settings: type) -> dict[str, type | tuple[type, ...]]:
    """What a settings class takes from a TOML file, by name."""
    kinds: dict[str, type | tuple[type, ...]] = {"int": int, "str": str, "float": (int, float)}
    return {f.name: kinds.get(str(f.type), list) for f in dataclasses.fields(settings)}


def check_names(names: list[str]) -> None:
    """Refuses two fields of one name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f"field names must differ, found '{name}' {times} times")


def check_keys(values: dict[str, Any], known: dict[str, type | tuple[type, ...]], kind: str, where: str) -> None:
    """Refuses keys that nobody knows and values of another type."""
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{unknown(kind, key, known)} ({where})")
        if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is int):
            expected = getattr(known[key], "__name__", str(known[key]))
            raise ConfigError(f"{kind} '{key}' must be a {expected}, found {value!r} ({where})")
