"""Categories: a text that is frequent in the training rows gets an id, or all texts are hashed."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldwise.config.errors import ConfigError
from fieldwise.data.kinds.counted import Counted, Query
from fieldwise.data.kinds.kind import FIRST, MISSING, OTHER, CellLoop, Code, Coder, Field, Ids, plain_text
from fieldwise.data.kinds.lookup import MANY, CellWords, Lookup
from fieldwise.data.kinds.samples import Sample, plain_numbers
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.texts import hash_of

# Ids are int32, and two of them are taken.
LARGEST_HASH = 2**31 - 3
# Characters of a word that the loops over cells can hold; one of them is four bytes at most.
LONGEST = 1 << 12


@dataclass(frozen=True, init=False)
class WordField(Field):
    """A field with words, its values or parts of them.

    `min_count` occurrences in the training rows earn a word a unique id, the rest share `other`;
    `hash_buckets` > 0 hashes words into that many ids instead; with `shared_ids` > 0 words that earned an id share it
    with those of the same hash modulo `shared_ids`.
    """

    least: ClassVar = {"min_count": 1, "hash_buckets": 0, "shared_ids": 0}
    min_count: int = 2
    hash_buckets: int = 0
    shared_ids: int = 0

    def check(self) -> None:
        super().check()
        if self.hash_buckets > LARGEST_HASH:
            found = self.hash_buckets
            raise ConfigError(f"field '{self.name}': hash_buckets must be at most {LARGEST_HASH}, found {found}")

    @property
    def why_always_known(self) -> str:
        return "hashed values are never told apart" if self.hash_buckets else ""

    def words(self, texts: Sequence[str], first_size: int = 0) -> Words:
        """The code of texts that have earned their ids, in the order of these."""
        if self.hash_buckets:
            return HashCode(self)
        code = WordCode(self, numbered(self, texts), first_size)
        if len(code.vocabulary) != len(texts):
            raise ValueError(f"field '{self.name[:100]}' has a text twice")
        return code

    def query(self, column: str, is_list: bool) -> Query:
        return Query(column, least=0 if self.hash_buckets else self.min_count, counted=not self.hash_buckets)

    def fit_words(self, column: Counted) -> Words:
        """The code of a column's words."""
        return self.words([] if self.hash_buckets else self.frequent(column.texts))

    def frequent(self, counts: Sequence[tuple[str, int]]) -> list[str]:
        """Texts with at least `min_count` occurrences, the most frequent first, ties by text."""
        kept = sorted(((text, n) for text, n in counts if text and n >= self.min_count), key=lambda c: (-c[1], c[0]))
        return [text for text, _ in kept]


@dataclass(frozen=True, init=False)
class CategoryField(WordField):
    """A text, or a number or truth value as a text."""

    kind: ClassVar = "categorical"
    takes_the_rest: ClassVar = True
    may_be_position: ClassVar = True

    @classmethod
    def infer(cls, name: str, sample: Sample) -> Field | None:
        return None if sample.differs else cls(name)

    def query(self, column: str, is_list: bool) -> Query:
        # The first position is sought among all words, hashed or not.
        query = super().query(column, is_list)
        return replace(query, counted=True) if self.role else query

    def fit(self, column: Counted) -> Code:
        return self.fit_words(column)

    def first_position(self, column: Counted) -> str:
        texts = [text for text, _ in column.texts if text] if self.hash_buckets else self.frequent(column.texts)
        numbers = plain_numbers(texts)
        if numbers is None:
            found = ", ".join(texts[:3]) or "none"
            raise ConfigError(f"field '{self.name}': which of its words is the first position? set at, found {found}")
        return min(zip(numbers, texts, strict=True), key=lambda one: (math.isnan(one[0]), *one))[1]

    def load(self, texts: list[str], state: dict[str, Any]) -> Code:
        return self.words(texts, state["first_size"])


class Words(Code):
    """Words, each with one id."""

    field: WordField

    @abstractmethod
    def list_ids(self, texts: Sequence[str | None]) -> list[int]:
        """`ids` as a list."""

    def ids(self, texts: Sequence[str | None]) -> Ids:
        return np.array(self.list_ids(texts), dtype=np.int32)


@dataclass
class WordCode(Words):
    """Ids of a vocabulary's words, the most frequent first."""

    field: WordField
    vocabulary: dict[str, int]
    first_size: int = 0
    _lookup: Lookup | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        own = len(set(self.vocabulary.values())) if self.field.shared_ids else len(self.vocabulary)
        return FIRST + own

    @property
    def texts(self) -> list[str]:
        return list(self.vocabulary)

    @property
    def known_words(self) -> Mapping[str, int]:
        return self.vocabulary

    def list_ids(self, texts: Sequence[str | None]) -> list[int]:
        find = self.vocabulary.get
        return [MISSING if not text else find(text, OTHER) for text in texts]

    def text_of_id(self, number: int) -> str:
        return next(text for text, found in self.vocabulary.items() if found == number)

    def grown(self, column: Counted) -> Code:
        new = self.field.frequent([(text, n) for text, n in column.texts if text not in self.vocabulary])
        if not new:
            return self
        vocabulary = numbered(self.field, [*self.vocabulary, *new])
        grown = replace(self, vocabulary=vocabulary, first_size=self.first_size or self.size)
        grown.ranks = self.ranks
        return grown

    @property
    def loop(self) -> type[CellLoop] | None:
        return CellWords if max(map(len, self.vocabulary), default=0) < LONGEST else None

    def word_ids(self, words: pa.Array) -> Ids:
        if len(words) < MANY:
            return super().word_ids(words)
        if self._lookup is None:
            self._lookup = Lookup(self.vocabulary, OTHER)
        ids, places = self._lookup.find(words)
        odd = np.flatnonzero((places < -1) | (pc.binary_length(words).to_numpy() == 0))
        ids[odd] = self.ids([text_of(word) for word in words.take(pa.array(odd)).to_pylist()])
        return ids

    def coder(self) -> Coder:
        find, name = self.vocabulary.get, self.field.name

        def one(value: Any) -> int:
            text = plain_text(value, name)
            return find(text, OTHER) if text else MISSING

        def column(values: Sequence[Any]) -> list[list[int]]:
            # A vocabulary holds texts as text_of spells them: what is found at once needs no spelling.
            ids = [find(value) if value.__class__ is str else None for value in values]
            return [[one(value) if id is None else id for value, id in zip(values, ids, strict=True)]]

        return column


@dataclass
class HashCode(Words):
    """Ids of any words by their hashes."""

    field: WordField

    @property
    def size(self) -> int:
        return FIRST + self.field.hash_buckets

    def list_ids(self, texts: Sequence[str | None]) -> list[int]:
        buckets = self.field.hash_buckets
        return [FIRST + hash_of(text) % buckets if text else MISSING for text in texts]

    def coder(self) -> Coder:
        return lambda values: [self.list_ids([plain_text(value, self.field.name) for value in values])]

    def text_of_id(self, number: int) -> str:
        return f"(hash {number - FIRST})"


class OverWords(Code):
    """A code that makes words of a value, and has their ids."""

    words: Words

    @property
    def size(self) -> int:
        return self.words.size

    @property
    def texts(self) -> list[str]:
        return self.words.texts

    def text_of_id(self, number: int) -> str:
        return self.words.text_of_id(number)


def numbered(field: WordField, texts: Sequence[str]) -> dict[str, int]:
    """Ids in the order of the texts; with `shared_ids` a text has that of the first one with its hash.

    >>> numbered(CategoryField("site"), ["a", "b"]), numbered(CategoryField("site", shared_ids=1), ["a", "b"])
    ({'a': 2, 'b': 3}, {'a': 2, 'b': 2})
    """
    if not field.shared_ids:
        return {text: FIRST + place for place, text in enumerate(texts)}
    bins = [hash_of(text) % field.shared_ids for text in texts]
    ids = {one: FIRST + place for place, one in enumerate(dict.fromkeys(bins))}
    return {text: ids[one] for text, one in zip(texts, bins, strict=True)}
