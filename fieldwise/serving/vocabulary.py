"""What a request may hold: the columns, their kinds, and known values of them, for pages that complete them."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from fieldwise.data.encode.encoder import Encoder, FieldCode
from fieldwise.data.history.history import ROW_ORDER

EXAMPLES = 8
# Behind every text that starts with a prefix.
LAST = chr(0x10FFFF)


@dataclass(frozen=True)
class FieldFacts:
    """A column of a request: its kind, how many values are known, and a few of them, the most frequent first; for a
    number some bounds of its buckets. `separator` stands between the members of a set.

    A kind is categorical, numeric or set; or, for columns that are no fields, history (one of its keys), time (its
    clock) or raw (what a recipe makes fields of).
    """

    name: str
    kind: str
    size: int
    examples: tuple[str, ...]
    separator: str = ""


class Words:
    """The known values of a field; they have ids in the order of their frequency."""

    def __init__(self, code: FieldCode) -> None:
        self.code = code

    @cached_property
    def _sorted(self) -> list[tuple[str, int, str]]:
        return sorted((text.casefold(), id, text) for text, id in self.code.vocabulary.items())

    def search(self, prefix: str, limit: int) -> list[str]:
        """Values that start with a prefix, whatever its case, the most frequent first."""
        if not prefix:
            return [text for text, _ in zip(self.code.vocabulary, range(limit), strict=False)]
        low = prefix.casefold()
        first, last = (bisect_left(self._sorted, (key,)) for key in (low, low + LAST))
        found = heapq.nsmallest(limit, self._sorted[first:last], key=lambda word: word[1])
        return [text for _, _, text in found]


def facts_of(encoder: Encoder, raw: Iterable[str] = ()) -> dict[str, FieldFacts]:
    """The columns of an encoder's rows, and the raw ones that some of them can be made of."""
    found = {}
    for code in encoder.codes:
        examples = [text for text, _ in zip(code.vocabulary, range(EXAMPLES), strict=False)]
        if code.field.ordered:
            bounds = code.thresholds if len(code.thresholds) else code.anchors
            step = max(1, -(-len(bounds) // EXAMPLES))
            examples = [f"{bound:g}" for bound in bounds[::step]]
        elif code.field.kind == "numeric":
            # Log-square buckets are words of their own, which no row holds.
            examples = []
        separator = code.field.separator if code.field.kind == "set" else ""
        facts = FieldFacts(code.field.name, code.field.kind, code.size - 2, tuple(examples), separator)
        found[facts.name] = facts
    settings = encoder.schema.history
    for name in settings.columns:
        found.setdefault(name, FieldFacts(name, "history", 0, ()))
    if settings.keys and settings.time not in ("", ROW_ORDER):
        found.setdefault(settings.time, FieldFacts(settings.time, "time", 0, ()))
    for name in raw:
        found.setdefault(name, FieldFacts(name, "raw", 0, ()))
    return found
