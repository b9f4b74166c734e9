"""Encoded rows on disk: what `prepare` leaves and training maps into memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError
from fieldwise.data.hiding import PIECE, Hiding, blank
from fieldwise.data.schema import Layout, Schema

PARTS = ("train", "valid", "test")
# The name of a part's ids in the view of its history that was not asked for.
OTHER_IDS = "other_ids"
# A block of rows in the order of time: its part, its rows, and the positives among them.
Level = tuple[str, int, int]
FACTS = "data.json"
FORMAT = 1


@dataclass(frozen=True)
class Part:
    """The rows of one part: ids (n, C), labels (n,) and, where rows are weighted, weights (n,).

    `ranks` (n, R) are the columns that only trees read; `Dataset.with_ranks` puts them behind the ids. `other_ids` are
    those of the view of the history that was not asked for, where there are two. A model that learns from the rows
    reads their ids by `shown`, with what is to be hidden from it.
    """

    ids: NDArray[np.int32]
    labels: NDArray[np.uint8]
    weights: NDArray[np.float32] | None = None
    ranks: NDArray[np.uint16] | None = None
    other_ids: NDArray[np.int32] | None = None
    hiding: Hiding | None = None

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def with_ranks(self) -> Part:
        """The part whose ids have the ranks behind them."""
        if self.ranks is None:
            return self
        ids, other = (None if own is None else RankedIds(own, self.ranks) for own in (self.ids, self.other_ids))
        return replace(self, ids=cast(NDArray[np.int32], ids), other_ids=cast(Any, other), ranks=None)

    def shown(self, rows: NDArray[np.int64], epoch: int = 0) -> NDArray[np.int32]:
        """A copy of the ids (n, C) of these rows, as a model is to see them when it learns, in some epoch."""
        # `take` copies whole rows: five times as fast as an index, and half a millisecond a step is much for LR and FM.
        whole: Any = self.ids
        ids: NDArray[np.int32]
        ids = whole[rows] if isinstance(whole, RankedIds) else np.take(np.asarray(whole), rows, axis=0)
        if self.hiding is not None:
            places, columns, hidden = self.hiding.cells(rows, epoch)
            ids[places, columns] = hidden
        return ids

    @property
    def rows_with_hidden(self) -> NDArray[np.int64]:
        """The numbers of the rows that have something hidden in the first epoch, in their order."""
        if self.hiding is None:
            return np.empty(0, dtype=np.int64)
        firsts = range(0, self.rows, PIECE)
        pieces = (np.arange(first, min(first + PIECE, self.rows)) for first in firsts)
        return np.concatenate([own[np.unique(self.hiding.cells(own, 0)[0])] for own in pieces])


class RankedIds:
    """Ids (n, C) and the ranks (n, R) behind them, which lie in another file; reads only the requested rows."""

    dtype = np.dtype(np.int32)

    def __init__(self, ids: NDArray[np.int32], ranks: NDArray[np.uint16]) -> None:
        self.ids, self.ranks, self.shape = ids, ranks, (len(ids), ids.shape[1] + ranks.shape[1])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> NDArray[np.int32]:
        rows, *columns = rows if isinstance(rows, tuple) else (rows,)
        found = np.concatenate([self.ids[rows], self.ranks[rows].astype(np.int32)], axis=-1)
        return found[(..., *columns)] if columns else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)


def one_label(part: str, rows: int, label: int) -> str:
    """What is wrong with a part that has rows of one class alone."""
    return (
        f"all {rows:,} rows of the {part} part have label {label}, so that nothing can be judged by them; "
        "prepare with other shares (--split), another --seed or another file for it"
    )


@dataclass(frozen=True)
class Dataset:
    """A prepared folder: schema.toml, encoder/, data.json and a folder for each part.

    `names` are those of the layout's fields; `negatives_kept` is the share of its negatives that training has; `hide`
    is the share of the training rows in which a model is not to see the value of a column; `levels` are the blocks of
    time of rows that were split by it. Parts and layout are those of networks; `with_ranks` has those of trees, of the
    fields in `ranked`.
    """

    path: Path
    schema: Schema
    layout: Layout
    parts: dict[str, Part]
    fingerprint: str
    names: list[str]
    negatives_kept: float = 1.0
    ranked: tuple[int, ...] = ()
    hide: dict[str, float] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()

    def training(self, seed: int, hide: bool = True) -> Part:
        """The training rows for a model to learn from: some values are hidden, drawn by the seed."""
        part = self.parts["train"]
        if not (hide and self.hide):
            return part
        blanks = [
            blank(name, self.names, self.layout, self.schema.history, self.schema.lost_pasts) for name in self.hide
        ]
        return replace(part, hiding=Hiding(blanks, list(self.hide.values()), seed, part.labels))

    @classmethod
    def open(cls, path: Path) -> Dataset:
        try:
            text = (path / FACTS).read_text(encoding="utf-8")
            facts = json.loads(text)
            layout = Layout(*(tuple(facts[key]) for key in ("sizes", "widths", "ordered", "first_sizes")))
            groups = tuple(tuple(group) for group in facts.get("sequences", ()))
            layout = replace(layout, like=tuple(facts.get("like", ())), sequences=groups)
            ranked = tuple(facts.get("ranked", ()))
            names, kept = list(facts["names"]), float(facts["negatives_kept"])
            hide = _hide(facts)
            parts = {name: _open_part(path / name) for name in PARTS if name in facts["rows"]}
            levels = _levels(facts)
            # It is what a trained model takes along in the end: too late to find out that it is gone.
            if not (path / "encoder").is_dir():
                raise FileNotFoundError(path / "encoder")
        except FileNotFoundError as error:
            missing = error.filename or error
            raise BundleError(f"not a folder that `fieldwise prepare` wrote: there is no {missing} ({path})") from None
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise BundleError(f"not a folder that `fieldwise prepare` wrote: {error} ({path})") from None
        schema = Schema.load(path / "schema.toml")
        for name, part in parts.items():
            weights = part.rows if part.weights is None else len(part.weights)
            whole = part.rows == weights == facts["rows"][name] and part.ids.shape == (part.rows, layout.columns)
            ranks = (0, 0) if part.ranks is None else part.ranks.shape
            if not whole or part.ids.dtype != np.int32 or ranks != ((part.rows, len(ranked)) if ranked else (0, 0)):
                found = f"{part.ids.shape} ids of {part.ids.dtype}, {facts['rows'][name]} rows"
                raise BundleError(f"part '{name}' is damaged: {found} ({path})")
        fingerprint = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return cls(path, schema, layout, parts, fingerprint, names, kept, ranked, hide, levels)

    @property
    def with_ranks(self) -> Dataset:
        """The rows as encoders give them and trees read them: ids, and behind them the ranks of numbers."""
        if not self.ranked:
            return self
        parts = {name: part.with_ranks for name, part in self.parts.items()}
        return replace(self, layout=replace(self.layout, ranked=self.ranked), parts=parts, ranked=())


def _levels(facts: dict[str, Any]) -> tuple[Level, ...]:
    """The blocks of time; folders that were written before there were any have none."""
    return tuple((str(part), int(rows), int(positives)) for part, rows, positives in facts.get("levels", ()))


def _open_part(folder: Path) -> Part:
    def array(name: str) -> NDArray[Any]:
        return cast(NDArray[Any], np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))

    def optional(name: str) -> NDArray[Any] | None:
        return array(name) if (folder / f"{name}.npy").exists() else None

    return Part(array("ids"), array("labels"), optional("weights"), optional("ranks"), optional(OTHER_IDS))


@dataclass(frozen=True)
class Tally:
    """The rows of each part, and the positives among them; and in blocks of time where they are split by it."""

    rows: dict[str, int]
    positives: dict[str, int]
    levels: tuple[Level, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> Tally:
        """What `write_facts` has left of a prepared folder."""
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        return cls(facts["rows"], facts["positives"], _levels(facts))


def hide_of(folder: Path) -> dict[str, float]:
    """What `write_facts` has left of a prepared folder on what training hides."""
    return _hide(json.loads((folder / FACTS).read_text(encoding="utf-8")))


def _hide(facts: dict[str, Any]) -> dict[str, float]:
    """The share of the training rows in which a value of each column is hidden; none in folders of older versions."""
    found = {str(name): float(share) for name, share in facts.get("hide", {}).items()}
    if not all(0 <= share <= 1 for share in found.values()):
        raise ValueError(f"shares to hide lie between 0 and 1, found {found}")
    return found


def is_prepared(folder: Path) -> bool:
    """Whether a prepared folder is there; its facts are written last."""
    return (folder / FACTS).is_file()


def write_facts(
    folder: Path,
    names: list[str],
    layout: Layout,
    tally: Tally,
    negatives_kept: float,
    digest: str,
    hide: dict[str, float] | None = None,
) -> None:
    """data.json: the shape of the rows, a digest of what they hold, and what training hides of them."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "names": names,
        "sizes": layout.sizes,
        "widths": layout.widths,
        "ordered": layout.ordered,
        "first_sizes": layout.first_sizes,
        "ranked": layout.ranked,
        "negatives_kept": negatives_kept,
        "rows": tally.rows,
        "positives": tally.positives,
        "digest": digest,
        "hide": hide or {},
    }
    more = {"levels": tally.levels, "like": layout.like, "sequences": layout.sequences}
    facts |= {name: value for name, value in more.items() if value}
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


class ArrayFile:
    """An .npy file that grows by appending rows. Plain writes: a full disk is an error, not a dead process.

    The first `keep` rows of a file that is already there stay. `digest` is that of all rows.
    """

    def __init__(self, file: BinaryIO, dtype: Any, shape: tuple[int, ...], keep: int = 0) -> None:
        self.file, self.dtype = file, np.dtype(dtype)
        self.digest, self.hasher = hashlib.blake2b(digest_size=16), ThreadPoolExecutor(1)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        left = keep * self.dtype.itemsize * int(np.prod(shape[1:]))
        while left:
            block = file.read(min(left, 1 << 24))
            self.digest.update(block)
            left -= len(block)
        file.truncate(file.seek(0, 1))

    def append(self, rows: NDArray[Any]) -> None:
        data = np.ascontiguousarray(rows, dtype=self.dtype).data
        # At the same time: a digest takes longer than to write, and both let go of Python's lock.
        hashed = self.hasher.submit(self.digest.update, data)
        self.file.write(data)
        self.file.flush()
        hashed.result()


@contextmanager
def array_file(path: Path, dtype: Any, shape: tuple[int, ...], keep: int = 0) -> Iterator[ArrayFile]:
    """Opens an .npy file of the given final shape for appending, behind the first `keep` rows that it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if keep else "wb") as file:
        array = ArrayFile(file, dtype, shape, keep)
        with array.hasher:
            yield array
