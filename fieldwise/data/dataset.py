"""Encoded rows on disk: what `prepare` leaves and training maps into memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import BundleError
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

    `other_ids` are those of the view of the history that was not asked for, where there are two.
    """

    ids: NDArray[np.int32]
    labels: NDArray[np.uint8]
    weights: NDArray[np.float32] | None = None
    other_ids: NDArray[np.int32] | None = None

    @property
    def rows(self) -> int:
        return len(self.labels)


def one_label(part: str, rows: int, label: int) -> str:
    """What is wrong with a part that has rows of one class alone."""
    return (
        f"all {rows:,} rows of the {part} part have label {label}, so that nothing can be judged by them; "
        "prepare with other shares (--split), another --seed or another file for it"
    )


@dataclass(frozen=True)
class Dataset:
    """A prepared folder: schema.toml, encoder/, data.json and a folder for each part.

    `names` are those of the layout's fields; `negatives_kept` is the share of its negatives that training has;
    `levels` are the blocks of time of rows that were split by it.
    """

    path: Path
    schema: Schema
    layout: Layout
    parts: dict[str, Part]
    fingerprint: str
    names: list[str]
    negatives_kept: float = 1.0
    levels: tuple[Level, ...] = ()

    @classmethod
    def open(cls, path: Path) -> Dataset:
        try:
            text = (path / FACTS).read_text(encoding="utf-8")
            facts = json.loads(text)
            layout = Layout(*(tuple(facts[key]) for key in ("sizes", "widths", "ordered", "first_sizes")))
            names, kept = list(facts["names"]), float(facts["negatives_kept"])
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
            if not whole or part.ids.dtype != np.int32:
                found = f"{part.ids.shape} ids of {part.ids.dtype}, {facts['rows'][name]} rows"
                raise BundleError(f"part '{name}' is damaged: {found} ({path})")
        fingerprint = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return cls(path, schema, layout, parts, fingerprint, names, kept, levels)


def _levels(facts: dict[str, Any]) -> tuple[Level, ...]:
    """The blocks of time; folders that were written before there were any have none."""
    return tuple((str(part), int(rows), int(positives)) for part, rows, positives in facts.get("levels", ()))


def _open_part(folder: Path) -> Part:
    weights, other = folder / "weights.npy", folder / f"{OTHER_IDS}.npy"
    return Part(
        np.load(folder / "ids.npy", mmap_mode="r", allow_pickle=False),
        np.load(folder / "labels.npy", mmap_mode="r", allow_pickle=False),
        np.load(weights, mmap_mode="r", allow_pickle=False) if weights.exists() else None,
        np.load(other, mmap_mode="r", allow_pickle=False) if other.exists() else None,
    )


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


def is_prepared(folder: Path) -> bool:
    """Whether a prepared folder is there; its facts are written last."""
    return (folder / FACTS).is_file()


def write_facts(
    folder: Path, names: list[str], layout: Layout, tally: Tally, negatives_kept: float, digest: str
) -> None:
    """data.json: the shape of the rows, and a digest of what they hold."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "names": names,
        "sizes": layout.sizes,
        "widths": layout.widths,
        "ordered": layout.ordered,
        "first_sizes": layout.first_sizes,
        "negatives_kept": negatives_kept,
        "rows": tally.rows,
        "positives": tally.positives,
        "digest": digest,
    } | ({"levels": tally.levels} if tally.levels else {})
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
