"""Categories: a text that is frequent in the training rows gets an id, or all texts are hashed."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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
        """The code of texts that have earned their ids, in the order of these; an empty text is an id that is free."""
        if self.hash_buckets:
            return HashCode(self)
        ids, free = numbered(self, texts)
        code = WordCode(self, ids, first_size, free)
        if len(code.vocabulary) != sum(map(bool, texts)):
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
    """Ids of a vocabulary's words, the most frequent first; where words have left it, later ones have their ids.

    `free` are the ids of words that have left and that no other has yet, in rising order.
    """

    field: WordField
    vocabulary: dict[str, int]
    first_size: int = 0
    free: tuple[int, ...] = ()
    _lookup: Lookup | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        own = len(set(self.vocabulary.values())) if self.field.shared_ids else len(self.vocabulary)
        return FIRST + own + len(self.free)

    @property
    def texts(self) -> list[str]:
        """The words in the order of their ids, an empty text for each id that is free."""
        if not self.free:
            return list(self.vocabulary)
        every = [*self.vocabulary.items(), *(("", id) for id in self.free)]
        return [text for text, _ in sorted(every, key=lambda one: one[1])]

    @property
    def own_words(self) -> WordCode:
        return self

    @property
    def known_words(self) -> Mapping[str, int]:
        return self.vocabulary

    @property
    def numbers(self) -> NDArray[np.float64] | None:
        found = plain_numbers(list(self.vocabulary)) if len(self.vocabulary) > 2 else None
        if found is None:
            return None
        numbers = np.full(self.size, math.nan)
        numbers[list(self.vocabulary.values())] = found
        return numbers

    def list_ids(self, texts: Sequence[str | None]) -> list[int]:
        find = self.vocabulary.get
        return [MISSING if not text else find(text, OTHER) for text in texts]

    def text_of_id(self, number: int) -> str:
        return next((text for text, found in self.vocabulary.items() if found == number), "(expired)")

    def grown(self, column: Counted) -> Code:
        new = self.field.frequent([(text, n) for text, n in column.texts if text not in self.vocabulary])
        if not new:
            return self
        if not self.free:
            vocabulary, _ = numbered(self.field, [*self.vocabulary, *new])
            return self._changed(vocabulary, (), self.first_size or self.size)
        ids, free = self._placed(new)
        first_size = self.first_size or (self.size if max(ids.values()) >= self.size else 0)
        return self._changed(ids, free, first_size)

    def without(self, texts: Collection[str]) -> WordCode:
        if not texts:
            return self
        gone = frozenset(texts)
        kept = {text: id for text, id in self.vocabulary.items() if text not in gone}
        free = sorted(frozenset(range(FIRST, self.size)).difference(kept.values()))
        return self._changed(_by_id(kept), tuple(free), self.first_size)

    def _placed(self, new: Sequence[str]) -> tuple[dict[str, int], tuple[int, ...]]:
        """The words with new ones, and the ids that are still free: new words take these first, the lowest first."""
        ids, bins = dict(self.vocabulary), self.field.shared_ids
        of_bin = {hash_of(text) % bins: id for text, id in ids.items()} if bins else {}
        taken = 0
        for text in new:
            place = hash_of(text) % bins if bins else -1
            if place not in of_bin:
                behind = self.size + taken - len(self.free)
                id = self.free[taken] if taken < len(self.free) else behind
                taken += 1
                of_bin |= {place: id} if bins else {}
            ids[text] = of_bin[place] if bins else id
        return _by_id(ids), self.free[taken:]

    def _changed(self, ids: dict[str, int], free: tuple[int, ...], first_size: int) -> WordCode:
        found = replace(self, vocabulary=ids, free=free, first_size=first_size)
        found.ranks = self.ranks
        return found

    def lives_on(self, old: Code, renewed: NDArray[np.bool_]) -> bool:
        if not isinstance(old, WordCode) or old.size > self.size or not self._same_state(old):
            return False
        same = (self.field, self.first_size or self.size) == (old.field, old.first_size or old.size)
        return same and not self._swapped(old, renewed)

    def _swapped(self, old: WordCode, renewed: NDArray[np.bool_]) -> bool:
        """Whether a word has come to, or left, one of the old ids that was not given up in between."""
        mine, theirs = self.vocabulary, old.vocabulary
        kept = {id for text, id in theirs.items() if mine.get(text) == id}
        given_up = {FIRST + place for place in np.flatnonzero(renewed).tolist()} | set(range(old.size, self.size))
        left = {id for text, id in theirs.items() if text not in mine} - kept
        moved = {mine[text] for text, id in theirs.items() if mine.get(text, id) != id}
        came = {id for text, id in mine.items() if text not in theirs} - kept
        return not left | moved | came <= given_up

    def places(self, words: pa.Array) -> NDArray[np.int64]:
        """Where words (n,), as `text_of` spells them, stand in the vocabulary's order; -1 for others."""
        if len(words) < MANY:
            return np.array([self._order.get(word, -1) for word in words.to_pylist()], dtype=np.int64)
        if self._lookup is None:
            self._lookup = Lookup(self.vocabulary, OTHER)
        _, found = self._lookup.find(words)
        for place in np.flatnonzero(found < -1).tolist():
            found[place] = self._order.get(words[place].as_py(), -1)
        return found

    @cached_property
    def _order(self) -> dict[str, int]:
        return {text: place for place, text in enumerate(self.vocabulary)}

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


def numbered(field: WordField, texts: Sequence[str]) -> tuple[dict[str, int], tuple[int, ...]]:
    """Ids in the order of the texts, and the ids of empty ones, which are free; with `shared_ids` a text has the id of
    the first one with its hash.

    >>> numbered(CategoryField("site"), ["a", "", "b"]), numbered(CategoryField("site", shared_ids=1), ["a", "b"])
    (({'a': 2, 'b': 4}, (3,)), ({'a': 2, 'b': 2}, ()))
    """
    if not field.shared_ids:
        ids = {text: FIRST + place for place, text in enumerate(texts) if text}
        return ids, tuple(FIRST + place for place, text in enumerate(texts) if not text)
    # Each empty text is a bin of its own.
    bins = [hash_of(text) % field.shared_ids if text else -1 - place for place, text in enumerate(texts)]
    of_bin = {one: FIRST + place for place, one in enumerate(dict.fromkeys(bins))}
    ids = {text: of_bin[one] for text, one in zip(texts, bins, strict=True) if text}
    return ids, tuple(id for one, id in of_bin.items() if one < 0)


def _by_id(ids: Mapping[str, int]) -> dict[str, int]:
    """Words in the order of their ids."""
    return dict(sorted(ids.items(), key=lambda one: one[1]))
