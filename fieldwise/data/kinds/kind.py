"""What a kind of field is: a `Field`, its settings in schema.toml, and the `Code` that is fitted on training rows.

A kind is a file in this room with a class of each. All other code uses these two classes, and no other room knows
which kinds there are: prepare fits, encodes and saves by them, predict and the server read values by them, pages and
errors take their words. `ids` says what a value's id is; the other ways to the same ids (of a column, of cells as they
lie in a file, of a request's values) are there to be faster, and need not be written: a test holds all of them, of
every kind, to `ids`.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError, DataError, unknown
from fieldwise.data.kinds.counted import Counted, Query
from fieldwise.data.kinds.lookup import MANY
from fieldwise.data.read.formats import is_list, text_of
from fieldwise.data.read.texts import places_of, texts_of

if TYPE_CHECKING:
    from fieldwise.data.kinds.category import WordCode
    from fieldwise.data.kinds.samples import Sample
    from fieldwise.data.read.cells import Cells

# The ids of every field: 0 is a missing value, 1 is `other`, its own values follow; -1 is an unused place of a set.
MISSING, OTHER, FIRST, PAD = 0, 1, 2, -1
MOST_STEPS = 64
# What a history counts a field by: the text of its value, its bucket, or the whole cell, which is worth no proposal.
BY_TEXT, BY_BUCKET, BY_CELL = "text", "bucket", "cell"
Ids = NDArray[np.int32]
Whole = NDArray[np.int64]
# The values of a column -> its id columns, each as long as the values.
Coder = Callable[[Sequence[Any]], list[list[int]]]
KINDS: dict[str, type[Field]] = {}
# What a field may be besides an ordinary one: the place where a row was shown, which is fixed when rows are served.
POSITION = "position"
ROLES = ("", POSITION)


def check_steps(where: str, steps: int) -> None:
    """Refuses interpolation in more steps than a row should have columns for."""
    if not 0 <= steps <= MOST_STEPS:
        raise ConfigError(f"{where}: interpolate takes 1 to {MOST_STEPS} steps, or 0 for none, found {steps}")


@dataclass(frozen=True, init=False)
class Field:
    """One field, as schema.toml has it. `Field("price", "numeric", max_buckets=16)` is one of the kind of that name.

    A kind is a subclass with a name in `kind`, decorated as this one; its settings are its attributes. Settings that
    only other kinds have say nothing about a field and are left out. `role` position: the rows say where they were
    shown, training learns from it, and predictions take the value `at` for all rows; without it, the first position.
    """

    kind: ClassVar[str]
    # The least that settings may be.
    least: ClassVar[Mapping[str, int]] = {}
    history_key: ClassVar[str] = BY_TEXT
    # Whether cells must be numbers: libffm files hold them as such, and rows with another text may be skipped.
    is_number: ClassVar[bool] = False
    # Whether the kind is asked first what an unknown column is, or takes what no other kind has recognised.
    asked_first: ClassVar[bool] = False
    takes_the_rest: ClassVar[bool] = False
    # Whether rows may come without the column: its value is missing then.
    may_be_absent: ClassVar[bool] = False
    # Whether the column says when a row came.
    is_time: ClassVar[bool] = False
    # Whether the column may say where a row was shown.
    may_be_position: ClassVar[bool] = False

    name: str
    interpolate: int = 0
    role: str = ""
    at: str = ""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def __new__(cls, name: str = "", kind: str = "categorical", **settings: Any) -> Field:
        return super().__new__(kind_named(kind, name) if cls is Field else cls)

    def __init__(self, name: str, kind: str = "categorical", **settings: Any) -> None:
        own = {one.name: one.default for one in dataclasses.fields(self)}
        for setting in settings.keys() - own.keys():
            if setting not in (known := setting_types(self.kind)):
                raise ConfigError(f"field '{name}': " + unknown("field setting", setting, known))
        for setting, default in own.items():
            object.__setattr__(self, setting, settings.get(setting, default))
        object.__setattr__(self, "name", name)
        self.check()

    def check(self) -> None:
        """Refuses settings that make no sense."""
        for setting, least in self.least.items():
            if getattr(self, setting) < least:
                found = getattr(self, setting)
                raise ConfigError(f"field '{self.name}': {setting} must be at least {least}, found {found}")
        check_steps(f"field '{self.name}'", self.interpolate)
        if self.interpolate and not self.ordered:
            raise ConfigError(
                f"field '{self.name}': interpolate needs a number in ordered buckets, found {self.unordered}"
            )
        self._check_role()

    def _check_role(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"field '{self.name}': " + unknown("role", self.role, ROLES[1:]))
        if self.role and not self.may_be_position:
            raise ConfigError(f"field '{self.name}': a position has one value in each row, found a {self.kind} field")
        if self.at and not self.role:
            raise ConfigError(f"field '{self.name}': at is for a field with role = \"{POSITION}\", found '{self.at}'")

    @property
    def column(self) -> str:
        """The column of raw rows that the field is made of."""
        return self.name

    @property
    def columns(self) -> list[str]:
        """All columns of raw rows that it is made of; rows to predict for should have them."""
        return [self.column]

    @property
    def columns_needed(self) -> list[str]:
        """Those that rows must have."""
        return self.columns

    @property
    def shares(self) -> str:
        """The field whose ids, and so whose vectors, it has; empty where they are its own."""
        return ""

    @property
    def key(self) -> str:
        """What it has in common with the earlier rows that it is made of; empty where it is made of its own row."""
        return ""

    @property
    def sequence(self) -> str:
        """What fields have in common whose ids are those of the same rows, the newest first; empty: no sequence."""
        return ""

    @property
    def ordered(self) -> bool:
        """Whether ids rise with the values, so that `interpolate` may mix neighbours."""
        return False

    @property
    def unordered(self) -> str:
        """What a field without such an order is, for an error."""
        return f"a {self.kind} field"

    @property
    def why_always_known(self) -> str:
        """Why no value is ever `other`; empty where an id says whether training knew the value."""
        return ""

    def finer(self, buckets: int, steps: int) -> Field:
        """The field for trees: a number that was left to its default has a few buckets and a place between them."""
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that differ from their defaults: the kind's own, then those of every field."""
        general = {one.name for one in dataclasses.fields(Field)}
        every = sorted(dataclasses.fields(self), key=lambda one: one.name in general)
        values = {one.name: getattr(self, one.name) for one in every if one.name != "name"}
        return {one.name: values[one.name] for one in every if one.name != "name" and values[one.name] != one.default}

    @classmethod
    def infer(cls, name: str, sample: Sample) -> Field | None:
        """The field of this kind that a column without a schema is, or None where it is of another kind."""
        return None

    @classmethod
    def infer_all(cls, name: str, sample: Sample) -> Sequence[Field] | None:
        """The fields of this kind that such a column becomes: one, or several, or none that says anything."""
        found = cls.infer(name, sample)
        return None if found is None else [found]

    def query(self, column: str, is_list: bool) -> Query:
        """What is to be counted of the training rows to fit a code; the column's name is DuckDB's."""
        return Query(column)

    def fit(self, column: Counted) -> Code:
        """The code fitted on the training rows."""
        raise NotImplementedError

    def check_owner(self, fields: Mapping[str, Field]) -> None:
        """Refuses a schema without the field that it shares ids with, or with one that it cannot share."""

    def fit_over(self, owner: Code, column: Counted | None) -> Code:
        """The code that shares the ids of its owner's; what is counted is none for a field of earlier rows."""
        raise NotImplementedError

    def over(self, owner: Code, width: int) -> Code:
        """The same from the saved width, or over an owner's code that has grown; ValueError for no such width."""
        raise NotImplementedError

    def placed(self, column: Counted) -> Field:
        """The field with the value that it is fixed at when rows are served, if it has such a role."""
        return replace(self, at=self.first_position(column)) if self.role and not self.at else self

    def first_position(self, column: Counted) -> str:
        """The least of the values, as a text."""
        raise NotImplementedError

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        """The code from its saved `texts` and `state`, width and first_size among it; ValueError if they are none."""
        raise NotImplementedError


def kind_named(kind: str, name: str) -> type[Field]:
    """The kind of a field by its name; one that is not known is refused."""
    if kind not in KINDS:
        raise ConfigError(f"field '{name}': " + unknown("kind", kind, KINDS))
    return KINDS[kind]


def setting_types(kind: str) -> dict[str, str]:
    """The names of the types of a kind's settings, and of those that other kinds have."""
    every = [one for name in (*KINDS, kind) for one in dataclasses.fields(KINDS[name])]
    return {one.name: one.type if isinstance(one.type, str) else one.type.__name__ for one in every}


class Code(ABC):
    """How the values of one field become ids, as fitted on training rows.

    A row has `width` ids of it. `first_size` is the size before the vocabulary first grew, 0 where it never did.
    """

    field: Field
    width: int = 1
    first_size: int = 0
    # What stands between several values in one cell.
    separator: str = ""
    # The finer code of the same values by which trees read a number; None where the ids say as much.
    ranks: Code | None = None

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ids the field has."""

    @abstractmethod
    def ids(self, texts: Sequence[str | None]) -> Ids:
        """Ids of texts as `text_of` spells them: (n,), or (n, width) for several, unused places -1."""

    @abstractmethod
    def text_of_id(self, number: int) -> str:
        """What one of the field's own ids, from 2 on, stands for."""

    @property
    def numbers(self) -> NDArray[np.float64] | None:
        """The number that each id stands for, NaN where it is none; None where the ids are no numbers."""
        return None

    def value_of(self, number: int) -> str:
        """The text of an id, for people."""
        return ("(missing)", "(other)")[number] if number < FIRST else self.text_of_id(number)

    @property
    def fixed_ids(self) -> Ids:
        """The ids (1, width) of the value that the field is fixed at, and the rank behind them where it has one."""
        own = [self, *([self.ranks] if self.ranks else [])]
        return np.hstack([code.ids([self.field.at]).reshape(1, code.width) for code in own])

    # What is saved, and what may change.

    @property
    def texts(self) -> list[str]:
        """The texts that have ids, in the order of these; vocabulary.parquet keeps them."""
        return []

    @property
    def state(self) -> dict[str, Any]:
        """What else is needed to load the code, for encoder.json."""
        return {}

    def grown(self, column: Counted) -> Code:
        """The code with ids for values that new training rows add, behind the old ids, none of which changes."""
        return self

    def same_ids(self, other: Code) -> bool:
        """Whether every id means the same in both."""
        return self.size == other.size and self.texts == other.texts and self._same_state(other)

    def grew_from(self, old: Code) -> bool:
        """Whether every id of the old code means the same here; there may be more."""
        kept = [(one.field, one.width, one.first_size or one.size) for one in (self, old)]
        return kept[0] == kept[1] and self._same_state(old) and self.texts[: len(old.texts)] == old.texts

    @property
    def own_words(self) -> WordCode | None:
        """The code of the words that earn their ids in this field, and may lose them; None where there are none."""
        return None

    def without(self, texts: Collection[str]) -> Code:
        """The code without words that have expired: they are `other`, and their ids are free for new ones."""
        return self

    def lives_on(self, old: Code, renewed: NDArray[np.bool_]) -> bool:
        """Whether every id of the old code means the same here, or was given up since: `renewed` says so of our own
        ids, from 2 on."""
        return False

    def _same_state(self, other: Code) -> bool:
        return self.state == other.state and self.field.interpolate == other.field.interpolate

    # Faster ways to the same ids.

    @property
    def loop(self) -> type[CellLoop] | None:
        """The compiled loop that reads the field's cells as they lie in a file; None: they are read as a column."""
        return None

    @property
    def in_buckets(self) -> Code:
        """The code that gives the one id by which a history counts a number."""
        return self

    def missing(self, rows: int) -> Ids:
        """The ids (n, width) of rows without the column."""
        return np.broadcast_to(self.ids([None]).reshape(1, self.width), (rows, self.width))

    def column_ids(self, column: pa.ChunkedArray) -> Ids:
        """What `ids` gives for the texts of a column."""
        if is_list(column.type):
            raise DataError(f"field '{self.field.name}' is {self.field.kind}, found a column of lists")
        if pa.types.is_string(column.type) and len(column) >= MANY:
            column = column.combine_chunks().dictionary_encode()
            column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        kind = column.type
        if pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type) and column.num_chunks == 1:
            # Each word of the dictionary once; a row without a value points behind the last word.
            ids = np.concatenate([self.word_ids(column.chunk(0).dictionary), self.ids([None])])
            return np.asarray(ids[places_of(column.chunk(0))])
        texts, places = texts_of(column)
        return self.ids(texts)[places]

    def word_ids(self, words: pa.Array) -> Ids:
        """What `ids` gives for the texts of words, none of them null."""
        return self.ids([text_of(word) for word in words.to_pylist()])

    def coder(self) -> Coder:
        """How the server reads a request's values: what `ids` gives for their texts, as plain lists."""
        name, width = self.field.name, self.width

        def columns(values: Sequence[Any]) -> list[list[int]]:
            found: list[list[int]] = self.ids([plain_text(v, name) for v in values]).reshape(-1, width).T.tolist()
            return found

        return columns

    # Words for the server's page.

    @property
    def known_words(self) -> Mapping[str, int]:
        """The texts that a row may hold and that have ids, the most frequent first."""
        return {}

    def examples(self, most: int) -> list[str]:
        """Some values that a row may hold."""
        return [text for text, _ in zip(self.known_words, range(most), strict=False)]

    @property
    def hint(self) -> str:
        """What to type into the field."""
        known = len(self.known_words)
        return f"{known:,} known value{'' if known == 1 else 's'}" if self.known_words else "any text"


def id_columns(codes: Sequence[Code]) -> list[slice]:
    """Where each code has its ids in a row of all of them."""
    ends = itertools.accumulate(code.width for code in codes)
    return [slice(end - code.width, end) for code, end in zip(codes, ends, strict=True)]


class CellLoop(Protocol):
    """A compiled loop over cells, with its tables for all fields whose codes name it."""

    def __init__(self, codes: Sequence[Any]) -> None: ...

    def run(self, cells: Cells, columns: Whole, places: Whole, ids: Ids, left: Whole) -> None:
        """Cells of columns[f] -> column places[f] of the ids (n, C). Some may be `LEFT`; left[f] counts them."""


def plain_text(value: Any, name: str) -> str | None:
    """The text of a request's value; lists and objects are refused."""
    if isinstance(value, (list, tuple, dict, set)):
        kind = "a list" if isinstance(value, (list, tuple, set)) else "an object"
        raise DataError(f"field '{name}' takes a text, a number, true, false or null, found {kind}")
    try:
        return text_of(value)
    except ValueError:
        raise DataError(f"field '{name}' takes numbers of up to 4,300 digits, found a longer one") from None
