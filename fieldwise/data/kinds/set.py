"""Sets: a cell holds several words, whose order and repetitions do not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import ConfigError
from fieldwise.data.kinds.category import OverWords, WordField, Words
from fieldwise.data.kinds.counted import Counted, Query
from fieldwise.data.kinds.kind import BY_CELL, MISSING, PAD, Code, Coder, Field, Ids, plain_text
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.read.formats import is_list, quoted, text_of

SEPARATORS = ("|", ";", ",")


@dataclass(frozen=True, init=False)
class SetField(WordField):
    """Words with `separator` between them, or lists of words; at most `max_values` of them count."""

    kind: ClassVar = "set"
    history_key: ClassVar = BY_CELL
    least: ClassVar = {**WordField.least, "max_values": 1}
    separator: str = "|"
    max_values: int = 32

    def check(self) -> None:
        super().check()
        if not self.separator:
            raise ConfigError(f"field '{self.name}': a set needs a separator, found an empty one")

    @classmethod
    def infer(cls, name: str, sample: Sample) -> Field | None:
        if sample.is_list:
            return cls(name)
        separator = separator_of(sample.known) if sample.numbers is None else ""
        return cls(name, separator=separator) if separator else None

    def query(self, column: str, is_list: bool) -> Query:
        cell = column if is_list else f"string_split({column}::VARCHAR, {quoted(self.separator)})"
        return replace(super().query(cell, is_list), several=True, separator=self.separator)

    def fit(self, column: Counted) -> Code:
        return SetCode(self, self.fit_words(column), min(self.max_values, max(1, column.longest)))

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        if not 1 <= state["width"] <= self.max_values:
            found = str(state["width"])[:40]
            raise ValueError(f"field '{self.name[:100]}' has {self.max_values} values at most, found {found}")
        return SetCode(self, self.words(texts, state["first_size"]), state["width"])


@dataclass
class SetCode(OverWords):
    """A row has the ids of its members, as many as `width`."""

    field: SetField
    words: Words
    width: int

    def __post_init__(self) -> None:
        self.first_size, self.separator = self.words.first_size, self.field.separator

    @property
    def known_words(self) -> Mapping[str, int]:
        return self.words.known_words

    def ids(self, texts: Sequence[str | None]) -> Ids:
        return self.set_ids([None if text is None else text.split(self.field.separator) for text in texts])

    def set_ids(self, cells: Sequence[Sequence[str | None] | None]) -> Ids:
        """The ids (n, width) of cells that are split already."""
        ids = np.full((len(cells), self.width), PAD, dtype=np.int32)
        for row, cell in enumerate(cells):
            # Members count once, whatever their order and repetitions; unknown ones are one `other`.
            members = self.words.list_ids([text_of(member) for member in cell or () if member])
            kept = list(dict.fromkeys(members) or (MISSING,))[: self.width]
            ids[row, : len(kept)] = kept
        return ids

    def column_ids(self, column: pa.ChunkedArray) -> Ids:
        if not is_list(column.type):
            return super().column_ids(column)
        cells = [None if cell is None else [text_of(member) for member in cell] for cell in column.to_pylist()]
        return self.set_ids(cells)

    def coder(self) -> Coder:
        name, separator = self.field.name, self.field.separator

        def cell(value: Any) -> Sequence[Any] | None:
            if isinstance(value, (list, tuple)):
                return [plain_text(member, name) for member in value]
            text = plain_text(value, name)
            return None if text is None else text.split(separator)

        def columns(values: Sequence[Any]) -> list[list[int]]:
            found: list[list[int]] = self.set_ids([cell(value) for value in values]).T.tolist()
            return found

        return columns

    def grown(self, column: Counted) -> Code:
        words = self.words.grown(column)
        assert isinstance(words, Words)
        return replace(self, words=words)

    @property
    def hint(self) -> str:
        return f"several, with {self.field.separator} between"


def separator_of(texts: list[str]) -> str:
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
