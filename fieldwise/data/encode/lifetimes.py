"""What a chain of prepared folders remembers of values: when each was last seen, and how often if it has no id.

Every folder that `prepare --continue-from` writes is one further in the chain. From this follows which values get an
id, which expire, and since when an id means what it means: `lifetimes.npz` in the folder's encoder/. It is for those
who continue; what encodes rows and serves them does without.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError
from fieldwise.data.encode.expiry import Expiry, clock_of, middle_of
from fieldwise.data.encode.sightings import Numbers, Sightings
from fieldwise.data.history.counts import Keys
from fieldwise.data.history.history import mixed
from fieldwise.data.kinds.category import WordCode
from fieldwise.data.kinds.counted import Counted, Piece, Recounted
from fieldwise.data.kinds.kind import FIRST, Code, Field, id_columns
from fieldwise.data.kinds.lookup import MANY, word_hashes
from fieldwise.data.read.texts import hash_of
from fieldwise.data.schema import Schema

if TYPE_CHECKING:
    from fieldwise.data.encode.encoder import Encoder

FILE = "lifetimes.npz"
# Rows whose ids are looked at together.
ROWS = 1 << 20


@dataclass
class Lives:
    """Of a field: the folder in which each word was last seen, in the vocabulary's order (V,), and the folder since
    which each own id, from 2 on, means what it means (N,)."""

    last: Numbers
    since: Numbers

    @classmethod
    def of(cls, words: WordCode) -> Lives:
        """Those of words that came with the first folder."""
        return cls(*(np.zeros(size, dtype=np.int32) for size in (len(words.vocabulary), words.size - FIRST)))

    def copy(self) -> Lives:
        return Lives(self.last.copy(), self.since.copy())

    def after(self, old: WordCode, new: WordCode, folder: int) -> Lives:
        """Those of the words that a folder has left, and of its ids."""
        if new is old:
            return self
        last = dict(zip(old.vocabulary, self.last.tolist(), strict=True))
        since = np.full(new.size - FIRST, folder, dtype=np.int32)
        kept = [id for text, id in old.vocabulary.items() if new.vocabulary.get(text) == id]
        kept += set(old.free) & set(new.free)
        places = np.array(kept, dtype=np.int64) - FIRST
        since[places] = self.since[places]
        return Lives(np.array([last.get(text, folder) for text in new.vocabulary], dtype=np.int32), since)


class Lifetimes:
    """What is remembered at one folder of a chain.

    `folder` is its number, from 0; `before` are the stamps of the encoders of the folders before it, `moments` the time
    that each folder had come to, NaN where no field says it, and `lives` those of the fields that have words.
    """

    def __init__(self, said: Sequence[str] = ()) -> None:
        """Begins a chain with its first folder; `said` is what --expire-after says."""
        self.folder, self.before, self.moments = 0, list[str](), [np.nan]
        self.expiry, self.pending = Expiry(tuple(said)), Sightings()
        self.lives: dict[str, Lives] = {}
        self.expired: dict[str, int] = {}

    @classmethod
    def after(cls, codes: Sequence[Code], known: Lifetimes | None, said: Sequence[str] = ()) -> Lifetimes:
        """The folder after that of these codes. Where nothing is known of their values, all count as seen in it."""
        old, found = known or cls(), cls(said)
        found.folder, found.before = old.folder + 1, [*old.before, stamp_of(codes)]
        found.moments = [*old.moments, np.nan]
        found.expiry = found.expiry if said else old.expiry
        found.pending = Sightings.of(old.pending.state())
        words = {code.field.name: own for code in codes if (own := code.own_words)}
        found.lives = {name: old.lives[name].copy() if known else Lives.of(own) for name, own in words.items()}
        return found

    def come_to(self, moment: float) -> None:
        """The folder's rows are of this moment, NaN where it is not known; the clock never goes back."""
        self.moments[-1] = np.fmax(moment, max(filter(np.isfinite, self.moments), default=np.nan))
        if np.isfinite(self.moments[-1]):
            # Folders from before the time was known count as of the first one whose time is.
            self.moments = [moment if np.isnan(one) else one for one in self.moments]

    def first(self, code: Code, column: Counted) -> None:
        """Remembers what a first folder has of a field, whose code was just fitted."""
        words = code.own_words
        if words is None:
            return
        self.lives[code.field.name] = Lives.of(words)
        field = words.field
        rare = [(text, n) for text, n in column.texts if text and n < field.min_count]
        for texts, counts in chain([_piece(rare)], column.rest):
            self.pending.add(_keys(field.name, texts), counts, field.min_count, self.folder)

    def grown(self, code: Code, column: Counted) -> Code:
        """The code with ids for values that were seen often enough by now, in place of those that have expired."""
        words = code.own_words
        if words is None:
            return code.grown(column)
        name = code.field.name
        counted = Recounted(column, self._seen(words, column))
        old = self._expired(words)
        self.expired[name] = len(old)
        found = code.without(old).grown(counted)
        assert found.own_words is not None
        self.lives[name] = self.lives[name].after(words, found.own_words, self.folder)
        return found

    def close(self, fields: Sequence[Field]) -> None:
        """Ends a folder's count. Values without an id are forgotten once no field would keep one with an id."""
        # In the schema's order, whichever columns were counted first.
        self.lives = {field.name: self.lives[field.name] for field in fields if field.name in self.lives}
        oldest = [self._oldest(field) for field in fields if field.name in self.lives]
        self.pending.close(min(oldest, default=0))

    def _seen(self, words: WordCode, column: Counted) -> list[tuple[str, int]]:
        """Counts a column's values; returns those without an id that have earned one, with all of their sightings."""
        found: list[tuple[str, int]] = []
        field, last = words.field, self.lives[words.field.name].last
        own = [(text, n) for text, n in column.texts if text]
        for every, all_counts in chain([_piece(own)], column.rest):
            places = words.places(every)
            last[places[places >= 0]] = self.folder
            unknown = np.flatnonzero(places < 0)
            texts, counts = every.take(pa.array(unknown)), all_counts[unknown]
            totals = self.pending.add(_keys(field.name, texts), counts, field.min_count, self.folder)
            enough = np.flatnonzero(totals >= field.min_count)
            found += zip(texts.take(pa.array(enough)).to_pylist(), totals[enough].tolist(), strict=True)
        return found

    def _expired(self, words: WordCode) -> list[str]:
        old = self.lives[words.field.name].last < self._oldest(words.field)
        texts = list(words.vocabulary) if old.any() else []
        return [texts[place] for place in np.flatnonzero(old).tolist()]

    def _oldest(self, field: Field) -> int:
        """The first folder in which a value must have been seen to stay."""
        age = self.expiry.of(field)
        if age is None:
            return 0
        if not age.in_seconds:
            return max(0, self.folder - int(age.number))
        return int(np.searchsorted(self.moments, self.moments[-1] - age.number)) if np.isfinite(self.moments[-1]) else 0

    def see_shared(self, codes: Sequence[Code], folder: Path) -> bool:
        """Values that encoded training rows of a folder have in fields that share another's ids were seen there too;
        returns whether there are such fields."""
        owners = {code.field.name: code.own_words for code in codes}
        sharing = [(code.field.shares, place) for code, place in zip(codes, id_columns(codes), strict=True)]
        sharing = [(name, place) for name, place in sharing if name and owners[name] is not None]
        ids = np.load(folder / "ids.npy", mmap_mode="r", allow_pickle=False) if sharing else np.empty((0, 0))
        for name, place in sharing:
            words = owners[name]
            assert words is not None
            there = np.zeros(words.size, dtype=np.bool_)
            for start in range(0, len(ids), ROWS):
                found = ids[start : start + ROWS, place]
                there[found[found >= 0]] = True
            numbers = np.fromiter(words.vocabulary.values(), dtype=np.int64, count=len(words.vocabulary))
            self.lives[name].last[there[numbers]] = self.folder
        return bool(sharing)

    def renewed(self, name: str, after: int) -> NDArray[np.bool_] | None:
        """Which of a field's ids, from 2 on, mean another value than they did in a folder; None: it has no words."""
        lives = self.lives.get(name)
        return None if lives is None else lives.since > after

    def folder_of(self, codes: Sequence[Code]) -> int:
        """The number of the last folder before this one that had these codes; -1 if it is none of the chain."""
        stamp = stamp_of(codes)
        return max((number for number, one in enumerate(self.before) if one == stamp), default=-1)

    def save(self, folder: Path) -> None:
        """Writes the file into an encoder's folder; without words there is none."""
        if not self.lives:
            return
        state: dict[str, Any] = {f"pending_{name}": array for name, array in self.pending.state().items()}
        for kind in ("last", "since"):
            own = [getattr(one, kind) for one in self.lives.values()]
            state |= {kind: np.concatenate(own), f"{kind}_sizes": np.array([len(one) for one in own], dtype=np.int64)}
        facts = {"fields": list(self.lives), "before": self.before, "said": self.expiry.said}
        state |= {"moments": np.array(self.moments), "facts": np.array(json.dumps(facts))}
        np.savez_compressed(folder / FILE, **state)

    @classmethod
    def load(cls, folder: Path, codes: Sequence[Code]) -> Lifetimes | None:
        """What `save` wrote; None in folders from before there was such a file."""
        if not (folder / FILE).is_file():
            return None
        try:
            with np.load(folder / FILE, allow_pickle=False) as held:
                return cls._of({name: held[name] for name in held.files}, codes)
        except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, BadZipFile) as error:
            reason = str(error).splitlines()[0][:300]
            raise BundleError(f"what is remembered of values is damaged: {reason} ({folder / FILE})") from None

    @classmethod
    def _of(cls, state: dict[str, Any], codes: Sequence[Code]) -> Lifetimes:
        facts, found = json.loads(str(state["facts"])), cls()
        found.before, found.expiry = [str(one) for one in facts["before"]], Expiry(tuple(map(str, facts["said"])))
        found.folder, found.moments = len(found.before), state["moments"].astype(np.float64).tolist()
        found.pending = Sightings.of({name: state[f"pending_{name}"] for name in ("keys", "counts", "last", "error")})
        parts = [np.split(state[kind], np.cumsum(state[f"{kind}_sizes"])[:-1]) for kind in ("last", "since")]
        found.lives = {name: Lives(*own) for name, *own in zip(facts["fields"], *parts, strict=True)}
        own = {code.field.name: words for code in codes if (words := code.own_words)}
        sizes = {name: (len(words.vocabulary), words.size - FIRST) for name, words in own.items()}
        if sizes != {name: (len(one.last), len(one.since)) for name, one in found.lives.items()}:
            raise ValueError("it is of another vocabulary")
        numbers = [array for one in found.lives.values() for array in (one.last, one.since)]
        if len(found.moments) != found.folder + 1 or any(array.dtype != np.int32 for array in numbers):
            raise ValueError("it has other numbers of folders")
        return found


def lifetimes_at(staged: Path, schema: Schema, known: Encoder | None, said: Sequence[str]) -> Lifetimes:
    """What is remembered of values at the folder of staged training rows, before these are counted."""
    found = Lifetimes.after(known.codes, known.lifetimes, said) if known else Lifetimes(said)
    found.expiry.check(schema)
    clock = clock_of(schema)
    # A first folder needs its time only if it says that values expire: it is of the time of the second one else.
    if clock is not None and (known or said):
        found.come_to(middle_of(staged, clock))
    return found


def stamp_of(codes: Sequence[Code]) -> str:
    """A digest of what the ids of all fields mean."""
    digest = hashlib.blake2b(digest_size=16)
    for code in codes:
        digest.update(json.dumps([code.field.name, code.width, code.size, code.texts, code.state]).encode())
    return digest.hexdigest()


def _piece(texts: Sequence[tuple[str, int]]) -> Piece:
    return pa.array([text for text, _ in texts], pa.string()), np.array([n for _, n in texts], dtype=np.int64)


def _keys(field: str, texts: pa.Array) -> Keys:
    """64 bits of each text in a field."""
    if len(texts) < MANY:
        hashes = np.array([hash_of(text) for text in texts.to_pylist()], dtype=np.uint64)
    else:
        hashes, odd = word_hashes(texts)
        hashes[odd] = [hash_of(texts[place].as_py()) for place in np.flatnonzero(odd).tolist()]
    return mixed([np.full(len(texts), hash_of(field), dtype=np.uint64), hashes], 0)
