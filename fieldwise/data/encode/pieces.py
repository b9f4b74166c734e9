"""Rows of files in pieces, each of which can be read by itself: a file, or some blocks of a large plain one.

What a piece has does not depend on who reads it, nor on what was read before: pieces are the shards of a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

# Blocks of a large file that are read together: 64 MB.
PIECE_BLOCKS = 4
# Staged files of a piece are numbered from its own number times this.
MOST_CHUNKS = 100_000


@dataclass(frozen=True)
class Piece:
    """A file of a source, or some of its blocks."""

    number: int
    source: str
    path: Path
    blocks: range | None = None

    @property
    def first_file(self) -> int:
        """The number of its first staged file."""
        return self.number * MOST_CHUNKS


class FileRows(ABC):
    """The rows of files: all of them when it is called, or a piece at a time."""

    files: Sequence[Path]

    @abstractmethod
    def __call__(self) -> Iterator[pa.Table]:
        """The chunks of all files, in their order."""

    @abstractmethod
    def check(self) -> None:
        """Refuses files that do not belong together."""

    def reading(self) -> AbstractContextManager[None]:
        """Within, schemas, blocks and pieces are read as the user said, also in a process of its own."""
        return nullcontext()

    @abstractmethod
    def schema(self, path: Path) -> pa.Schema:
        """The columns that chunks of a file have."""

    @abstractmethod
    def blocks(self, path: Path) -> int:
        """In how many blocks a file can be read; 0 where it is read as a whole."""

    @abstractmethod
    def piece(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The chunks of a piece; of some columns alone, they may be cut elsewhere but are the same rows."""

    @abstractmethod
    def noticed(self, piece: Piece) -> dict[str, Any]:
        """What was noticed while the piece was read, for `take`, as JSON holds it."""

    @abstractmethod
    def take(self, piece: Piece, noticed: dict[str, Any]) -> None:
        """Takes what was noticed elsewhere, as if the piece had been read here."""


def cut(blocks: int) -> list[range | None]:
    """The pieces of a file with that number of blocks.

    >>> cut(0), cut(10)
    ([None], [range(0, 4), range(4, 8), range(8, 10)])
    """
    if blocks <= PIECE_BLOCKS:
        return [None]
    return [range(first, min(first + PIECE_BLOCKS, blocks)) for first in range(0, blocks, PIECE_BLOCKS)]
