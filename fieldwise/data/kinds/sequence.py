"""Sequences: a cell holds words in the order of time, each as often as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.data.kinds.category import CategoryField, WordCode, Words
from fieldwise.data.kinds.counted import Counted, Query
from fieldwise.data.kinds.kind import MISSING, PAD, Code, Field, Ids
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.kinds.set import SetCode, SetField
from fieldwise.data.read.formats import text_of

ENDS = ("last", "first")


@dataclass(frozen=True, init=False)
class SequenceField(SetField):
    """Words with `separator` between them, or lists of words; the newest `max_values` of them count, newest first.

    `newest` says at which end of a cell the newest word stands: last, as in a log that is added to, or first. With
    `like` the words have the ids and the vectors of the categorical field of that name.
    """

    kind: ClassVar = "sequence"
    max_values: int = 50
    newest: str = ENDS[0]
    like: str = ""

    def check(self) -> None:
        super().check()
        if self.newest not in ENDS:
            raise ConfigError(f"field '{self.name}': " + unknown("newest", self.newest, ENDS))

    @classmethod
    def infer(cls, name: str, sample: Sample) -> Field | None:
        return None  # what is in order looks like a set

    @property
    def shares(self) -> str:
        return self.like

    @property
    def sequence(self) -> str:
        return self.name

    @property
    def why_always_known(self) -> str:
        return f"its values are those of '{self.like}'" if self.like else super().why_always_known

    def check_owner(self, fields: Mapping[str, Field]) -> None:
        owner = fields.get(self.like)
        if not isinstance(owner, CategoryField):
            found = f"{owner.kind} field" if owner else f"no field; there are: {', '.join(fields)}"
            raise ConfigError(f"field '{self.name}': like takes a categorical field, found '{self.like}', {found}")

    def query(self, column: str, is_list: bool) -> Query:
        found = replace(super().query(column, is_list), repeats=True)
        return replace(found, least=0, counted=False) if self.like else found

    def fit(self, column: Counted) -> Code:
        return SequenceCode(self, self.fit_words(column), self._width(column))

    def fit_over(self, owner: Code, column: Counted | None) -> Code:
        assert column is not None
        return self.over(owner, self._width(column))

    def over(self, owner: Code, width: int) -> Code:
        assert isinstance(owner, Words)
        self.check_width(width)
        return SequenceCode(self, owner, width)

    def code(self, words: Words, width: int) -> Code:
        return SequenceCode(self, words, width)

    def _width(self, column: Counted) -> int:
        return min(self.max_values, max(1, column.longest))


@dataclass
class SequenceCode(SetCode):
    """A row has the ids of its words, the newest first, as many as `width`."""

    field: SequenceField

    @property
    def texts(self) -> list[str]:
        return [] if self.field.like else self.words.texts

    def set_ids(self, cells: Sequence[Sequence[str | None] | None]) -> Ids:
        ids = np.full((len(cells), self.width), PAD, dtype=np.int32)
        for row, cell in enumerate(cells):
            words = [text_of(member) for member in cell or () if member]
            newest = words[: -self.width - 1 : -1] if self.field.newest == "last" else words[: self.width]
            kept = self.words.list_ids(newest) or [MISSING]
            ids[row, : len(kept)] = kept
        return ids

    @property
    def own_words(self) -> WordCode | None:
        return None if self.field.like else super().own_words

    def grown(self, column: Counted) -> Code:
        return self if self.field.like else super().grown(column)

    @property
    def hint(self) -> str:
        return f"{super().hint}, the newest {self.field.newest}"
