"""Staged parts -> ids on disk, chunk after chunk by several threads, and the leaves of trees that come last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.documents import read_journal
from fieldwise.data.dataset import OTHER_IDS, ArrayFile, Tally, array_file, write_facts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.engine import Engine, Threads
from fieldwise.data.encode.leaves import MOST_ROWS, Leaves
from fieldwise.data.encode.staged import LABEL, WEIGHT, Progress, read_staged, staged_files, staged_rows
from fieldwise.data.encode.timeline import is_there, other_file, past_file, past_of
from fieldwise.data.encode.unseen import shares_to_hide
from fieldwise.data.kinds.kind import id_columns
from fieldwise.data.read.parallel import using

JOURNAL = "encoded.jsonl"
Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Before:
    """Where the same rows were encoded before, and by what: fields of the same code have the same ids there."""

    encoder: Encoder
    folder: Path

    def places(self, encoder: Encoder) -> dict[str, slice]:
        """The id columns of the fields that an encoder has the same code for."""
        codes, own = self.encoder.codes, {code.field.name: code for code in encoder.codes}
        places = zip(codes, id_columns(codes), strict=True)
        return {code.field.name: place for code, place in places if own.get(code.field.name) is code}

    def ids(self, part: str, rows: slice, places: Mapping[str, slice]) -> dict[str, NDArray[np.int32]]:
        """What rows of a part have in some fields: their ids, and behind them the rank of those that have one."""
        ranked = [code.field.name for code in self.encoder.codes if code.ranks]
        # Mapped for these rows alone, so that no more than they stay in memory.
        ids = np.load(self.folder / part / "ids.npy", mmap_mode="r", allow_pickle=False)[rows]
        found = {name: ids[:, place] for name, place in places.items()}
        if not ranked:
            return found
        ranks = np.load(self.folder / part / "ranks.npy", mmap_mode="r", allow_pickle=False)[rows].astype(np.int32)
        behind = {name: ranks[:, [place]] for place, name in enumerate(ranked) if name in found}
        return found | {name: np.hstack([found[name], rank]) for name, rank in behind.items()}


class _Seen(NamedTuple):
    """What rows see of the past: history fields (n, H), and ids (n, width) by the names of fields, known ones too."""

    history: NDArray[np.int32] | None
    known: dict[str, NDArray[np.int32]]


class Coder:
    """Encodes staged files, each with the history fields of its rows."""

    def __init__(
        self, encoder: Encoder, stage: Path, before: Before | None = None, engine: Engine | None = None
    ) -> None:
        self.encoder, self.stage, self.before = encoder if engine is None else encoder.without_past, stage, before
        self.engine = engine or Threads()
        self.known = before.places(encoder) if before else {}
        weight = [WEIGHT] if encoder.schema.weight else []
        left = dict.fromkeys(field.column for field in encoder.schema.fields if field.name not in self.known)
        self.columns = [*left, LABEL, *weight] if before else None

    def __getstate__(self) -> dict[str, Any]:
        """Without the engine: what works on a shard has none."""
        return {**self.__dict__, "engine": Threads()}

    def encode(self, part: str, done: int = 0, every: int = 1) -> Iterator[Arrays]:
        """The arrays of a part, file after file, behind the first `done` files, a piece at a time."""
        files = staged_files(self.stage / part)
        firsts = np.cumsum([0, *(staged_rows(file) for file in files)])
        # Trees have threads of their own.
        with using(1) if self.encoder.leaves is not None else ExitStack():
            work = _Encoding(self, part, files, firsts, self.views(part), every)
            yield from self.engine.map(work, range(done, len(files)))

    def arrays(self, part: str, rows: slice, file: Path, views: bool, every: int) -> Arrays:
        """The arrays of one file, which has these rows of a part."""
        known = self._ids_before(part, rows)
        both = [past_file, other_file] if views else [past_file]
        seen = [self._seen(part, rows, file, of, known, every) for of in both]
        return self._arrays(read_staged(file, self.columns), seen, every)

    def views(self, part: str) -> bool:
        """Whether the rows of a part have two views of the past."""
        return any(is_there(other_file(self.stage, part, number)) for number in self._numbers)

    @property
    def _numbers(self) -> list[int | None]:
        """The numbers of the sequences, and that of the history, if there is one."""
        return [*([None] if self.encoder.history is not None else []), *range(len(self.encoder.pasts.every))]

    def _seen(
        self, part: str, rows: slice, staged: Path, file: Any, known: Mapping[str, NDArray[np.int32]], every: int
    ) -> _Seen:
        """What rows of a part see of the past, in one view; where there is one alone, in that."""
        found = {}
        for number in self._numbers:
            asked = file(self.stage, part, number)
            path = asked if is_there(asked) else past_file(self.stage, part, number)
            found[number] = past_of(path, staged, rows)[::every]
        ids = {name: own[::every] for name, own in known.items()}
        for number, past in enumerate(self.encoder.pasts):
            ids |= past.by_name(found[number].reshape(-1, len(past.names), past.settings.last))
        return _Seen(found.get(None), ids)

    def _ids_before(self, part: str, rows: slice) -> dict[str, NDArray[np.int32]]:
        """What rows of a part have in the fields that were encoded before."""
        return self.before.ids(part, rows, self.known) if self.before else {}

    def _arrays(
        self,
        rows: pa.Table,
        views: Sequence[_Seen],
        every: int,
    ) -> Arrays:
        rows = rows if every == 1 else rows.take(pa.array(np.arange(0, len(rows), every)))
        found = split_ranks(self.encoder, self.encoder.transform(rows, *views[0]))
        found |= {"labels": rows[LABEL].to_numpy()}
        if len(views) > 1:
            found[OTHER_IDS] = split_ranks(self.encoder, self.encoder.transform(rows, *views[1]))["ids"]
        return found | ({"weights": rows[WEIGHT].to_numpy()} if self.encoder.schema.weight else {})


@dataclass(frozen=True)
class _Encoding:
    """The number of a part's file -> its arrays."""

    coder: Coder
    part: str
    files: Sequence[Path]
    firsts: NDArray[np.int64]
    views: bool
    every: int

    def __call__(self, number: int) -> Arrays:
        rows = slice(int(self.firsts[number]), int(self.firsts[number + 1]))
        return self.coder.arrays(self.part, rows, self.files[number], self.views, self.every)


def split_ranks(encoder: Encoder, ids: NDArray[np.int32]) -> Arrays:
    """What an encoder gives, as it lies on disk: ids for all models, and ranks for trees."""
    columns = encoder.layout.id_columns
    found: Arrays = {"ids": ids[:, :columns]}
    return found | ({"ranks": ids[:, columns:]} if encoder.layout.ranked else {})


def fit_leaves(coder: Coder, rows: int) -> Leaves:
    """Trees over the encoded training rows, or over evenly spaced ones where there are very many."""
    every = -(-rows // MOST_ROWS)
    found = list(coder.encode("train", every=every))
    ids, labels, *weights = (np.concatenate([arrays[name] for arrays in found]) for name in found[0] if name != "ranks")
    schema = coder.encoder.schema
    weighted = weights[0] if weights else None
    return Leaves.fit(coder.encoder.layout.without_ranks, ids, labels, weighted, schema.gbdt_leaves, schema.gbdt_depth)


def write_parts(
    encoder: Encoder,
    stage: Path,
    folder: Path,
    tally: Tally,
    progress: Progress,
    before: Before | None = None,
    negatives_kept: float = 1.0,
    hide: dict[str, float] | None = None,
    engine: Engine | None = None,
) -> None:
    """Writes a prepared folder of staged rows: the schema, the encoder, the arrays of all parts and the facts.

    What training hides is said by `hide`, or by the rows themselves.
    """
    (folder / "schema.toml").write_text(encoder.schema.to_toml(), encoding="utf-8")
    encoder.save(folder / "encoder")
    digest = _encode(Coder(encoder, stage, before, engine), folder, tally.rows, progress)
    hide = shares_to_hide(encoder, folder, tally) if hide is None else hide
    write_facts(folder, encoder.names, encoder.layout, tally, negatives_kept, digest, hide)


def _encode(coder: Coder, folder: Path, rows: Mapping[str, int], progress: Progress) -> str:
    """Writes the arrays of all parts and returns a digest of them; goes on behind what a journal says is there."""
    encoder, journal = coder.encoder, coder.stage / JOURNAL
    done: dict[str, list[int]] = {}
    for entry in read_journal(journal):
        done.setdefault(entry["part"], []).append(entry["rows"])
    digest = first_digest(encoder)
    total = 0
    with journal.open("a", encoding="utf-8") as entries:
        for part, count in rows.items():
            written = done.get(part, [])
            total += sum(written)
            with ExitStack() as stack:
                files = open_files(stack, encoder, folder / part, count, sum(written), coder.views(part))
                for arrays in coder.encode(part, len(written)):
                    for name, values in arrays.items():
                        files[name].append(values)
                    entries.write(json.dumps({"part": part, "rows": len(arrays["labels"])}) + "\n")
                    entries.flush()
                    total += len(arrays["labels"])
                    progress("encoding", total)
                for file in files.values():
                    digest.update(file.digest.digest())
    return digest.hexdigest()


def first_digest(encoder: Encoder) -> hashlib.blake2b:
    """The digest of a folder's arrays before any of them: that of their layout."""
    return hashlib.blake2b(json.dumps([encoder.layout.sizes, encoder.layout.widths]).encode(), digest_size=16)


def open_files(
    stack: ExitStack, encoder: Encoder, folder: Path, rows: int, keep: int = 0, views: bool = False
) -> dict[str, ArrayFile]:
    """The array files of a part, to append to behind the first `keep` rows; ids once more where there are two views."""
    files: dict[str, tuple[type, tuple[int, ...]]] = {
        "ids": (np.int32, (rows, encoder.layout.id_columns)),
        "labels": (np.uint8, (rows,)),
    }
    if encoder.layout.ranked:
        files["ranks"] = (np.uint16, (rows, len(encoder.layout.ranked)))
    if encoder.schema.weight:
        files["weights"] = (np.float32, (rows,))
    if views:
        files[OTHER_IDS] = files["ids"]
    return {
        name: stack.enter_context(array_file(folder / f"{name}.npy", kind, shape, keep))
        for name, (kind, shape) in files.items()
    }
