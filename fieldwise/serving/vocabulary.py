"""The columns that a request may have, their kinds, and their known values, which pages use for completion."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.kinds.kind import FIRST, Code

EXAMPLES = 8
# Sorts after every text with the same prefix.
LAST = chr(0x10FFFF)


@dataclass(frozen=True)
class FieldFacts:
    """A column of a request: its kind, how many values are known and a few of them, the most frequent first (for a
    number, some bounds of its buckets). `separator` joins the members of a set, `hint` says what to type, `number`
    whether it must be a number, `complete` whether known values can be searched.

    The kind is that of a field, or, for other columns, history (a key of it), time (its clock) or raw (a recipe
    derives fields from it).
    """

    name: str
    kind: str
    size: int = 0
    examples: tuple[str, ...] = ()
    separator: str = ""
    hint: str = ""
    number: bool = False
    complete: bool = False


class Words:
    """The known values of a field, whose ids are in the order of frequency."""

    def __init__(self, code: Code) -> None:
        self.words = code.known_words

    @cached_property
    def _sorted(self) -> list[tuple[str, int, str]]:
        return sorted((text.casefold(), id, text) for text, id in self.words.items())

    def search(self, prefix: str, limit: int) -> list[str]:
        """Values that start with a prefix, ignoring case, the most frequent first."""
        if not prefix:
            return [text for text, _ in zip(self.words, range(limit), strict=False)]
        low = prefix.casefold()
        first, last = (bisect_left(self._sorted, (key,)) for key in (low, low + LAST))
        found = heapq.nsmallest(limit, self._sorted[first:last], key=lambda word: word[1])
        return [text for _, _, text in found]


def facts_of(encoder: Encoder, raw: Iterable[str] = ()) -> dict[str, FieldFacts]:
    """The columns of an encoder's rows, and the raw columns that some of them can be derived from."""
    found: dict[str, FieldFacts] = {}
    for code in (code for code in encoder.codes if not code.field.key):
        examples, name = tuple(code.examples(EXAMPLES)), code.field.column
        hint = f"fixed at {code.field.at}: where a row was shown is not read" if code.field.role else code.hint
        own = (code.separator, hint, code.field.is_number, bool(code.known_words))
        found.setdefault(name, FieldFacts(name, code.field.kind, code.size - FIRST, examples, *own))
    settings = encoder.schema.history
    for name in settings.columns:
        found.setdefault(name, FieldFacts(name, "history", hint="for its history"))
    if settings.keys and settings.clock:
        hint = "the time of the row, for its history"
        found.setdefault(settings.time, FieldFacts(settings.time, "time", hint=hint))
    for field in (code.field for code in encoder.codes if code.field.key):
        for name in field.columns_needed:
            found.setdefault(name, FieldFacts(name, "history", hint="for what came before"))
        for name in field.columns:
            found.setdefault(name, FieldFacts(name, "time", hint="the time of the row, for what came before"))
    for name in raw:
        found.setdefault(name, FieldFacts(name, "raw", hint="raw: used where the fields made of it are empty"))
    return found
