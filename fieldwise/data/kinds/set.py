"""Sets: a cell holds several words, whose order and repetitions do not count."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError
from fieldwise.data.kinds.category import OverWords, WordCode, WordField, Words
from fieldwise.data.kinds.counted import Counted, Query
from fieldwise.data.kinds.kind import BY_CELL, MISSING, PAD, Code, Coder, Field, Ids, plain_text
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.read.formats import is_list, quoted, text_of

SEPARATORS = ("|", ";", ",")
# A cell that is a list as programs print it; and what may stand around one, and around its members.
BRACKETS = re.compile(r"\s*(\[.*\]|\(.*\)|\{.*\})\s*", re.DOTALL)
# A number with a comma for its point is no set of two.
DECIMAL = re.compile(r"[-+]?\d+(,\d+)?")
OUTSIDE, AROUND = " []{}()", " '\""


@dataclass(frozen=True, init=False)
class SetField(WordField):
    """Words with `separator` between them, or lists of words; at most `max_values` of them count.

    `trimmed`: brackets around a cell, and blanks and quotes around its members, do not count, as in ['a', 'b'].
    """

    kind: ClassVar = "set"
    history_key: ClassVar = BY_CELL
    least: ClassVar = {**WordField.least, "max_values": 1}
    separator: str = "|"
    max_values: int = 32
    trimmed: bool = False

    def check(self) -> None:
        super().check()
        if not self.separator:
            raise ConfigError(f"field '{self.name}': a set needs a separator, found an empty one")

    @classmethod
    def infer(cls, name: str, sample: Sample) -> Field | None:
        if sample.is_list:
            return cls(name)
        if sample.numbers is not None:
            return None
        if sample.known and all(BRACKETS.fullmatch(text) for text in sample.known):
            # A list of numbers may have blanks alone between them, as numpy writes it.
            between = "," if any("," in text for text in sample.known) else " "
            inside = [_members(text, between) for text in sample.known]
            return cls(name, separator=between, trimmed=True) if _come_again(inside) else None
        if all(DECIMAL.fullmatch(text) for text in sample.known):
            return None
        separator = separator_of(sample.known)
        blanks = any(f"{separator} " in text for text in sample.known)
        return cls(name, separator=separator, trimmed=blanks) if separator else None

    def members(self, text: str) -> list[str]:
        """The words of a cell."""
        return _members(text, self.separator) if self.trimmed else text.split(self.separator)

    def query(self, column: str, is_list: bool) -> Query:
        cell = column
        if not is_list:
            text = f"{column}::VARCHAR"
            text = f"trim({text}, {quoted(OUTSIDE)})" if self.trimmed else text
            cell = f"string_split({text}, {quoted(self.separator)})"
            cell = f"[trim(x, {quoted(AROUND)}) FOR x IN {cell}]" if self.trimmed else cell
        return replace(super().query(cell, is_list), several=True, separator=self.separator)

    def fit(self, column: Counted) -> Code:
        return SetCode(self, self.fit_words(column), min(self.max_values, max(1, column.longest)))

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        self.check_width(state["width"])
        return self.code(self.words(texts, state["first_size"]), state["width"])

    def code(self, words: Words, width: int) -> Code:
        """The code of cells of these words."""
        return SetCode(self, words, width)

    def check_width(self, width: int) -> None:
        """Refuses a saved width that the field cannot have."""
        if not 1 <= width <= self.max_values:
            raise ValueError(f"field '{self.name[:100]}' has {self.max_values} values at most, found {str(width)[:40]}")


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
        return self.set_ids([None if text is None else self.field.members(text) for text in texts])

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
        name, members = self.field.name, self.field.members

        def cell(value: Any) -> Sequence[Any] | None:
            if isinstance(value, (list, tuple)):
                return [plain_text(member, name) for member in value]
            text = plain_text(value, name)
            return None if text is None else members(text)

        def columns(values: Sequence[Any]) -> list[list[int]]:
            found: list[list[int]] = self.set_ids([cell(value) for value in values]).T.tolist()
            return found

        return columns

    @property
    def own_words(self) -> WordCode | None:
        return self.words.own_words

    def grown(self, column: Counted) -> Code:
        words = self.words.grown(column)
        assert isinstance(words, Words)
        return replace(self, words=words)

    def without(self, texts: Collection[str]) -> Code:
        words = self.words.without(texts)
        assert isinstance(words, Words)
        return replace(self, words=words)

    def lives_on(self, old: Code, renewed: NDArray[np.bool_]) -> bool:
        return isinstance(old, SetCode) and self.width == old.width and self.words.lives_on(old.words, renewed)

    @property
    def hint(self) -> str:
        return f"several, with {self.field.separator} between"


def separator_of(texts: list[str]) -> str:
    """The separator of a set's cells: in many cells, and with members that come again in other cells."""
    together = "\n".join(texts)
    for separator in SEPARATORS:
        if separator not in together:
            continue
        cells = [[member.strip() for member in text.split(separator)] for text in texts]
        several = sum(len(cell) > 1 for cell in cells)
        if several >= 0.2 * len(cells) and several > 2 and _come_again(cells):
            return separator
    return ""


def _come_again(cells: Sequence[Sequence[str]]) -> bool:
    """Whether members come again in other cells, as those of a set do."""
    return 2 * len({member for cell in cells for member in cell}) < sum(map(len, cells))


def _members(text: str, separator: str) -> list[str]:
    """The words of a cell without the brackets, blanks and quotes around them.

    >>> _members("['a', 'b']", ","), _members("[]", ","), _members("a, b", ",")
    (['a', 'b'], [''], ['a', 'b'])
    """
    return [member.strip(AROUND) for member in text.strip(OUTSIDE).split(separator)]
