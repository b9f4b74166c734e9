"""Where shards are worked on: an engine maps a function over them, on this machine or on a cluster.

Functions and shards are plain objects that can be sent to another process; what a shard's function writes, it writes
whole, so that a shard may be worked on again after a kill.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fieldwise.config.files import whole_anywhere
from fieldwise.data.read.parallel import in_order

# Opens an engine for the time that it is needed.
Opened = Callable[[], AbstractContextManager["Engine"]]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Works on shards."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items, whose arrays may be read-only; the error of the first that has one."""

    def check(self, paths: Sequence[Path]) -> None:
        """Refuses to work where not every worker sees these files."""


class Threads:
    """The threads of this process, as many as parallel.py allows."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return in_order(function, items)

    def check(self, paths: Sequence[Path]) -> None:
        """Threads see what their process sees."""


@dataclass(frozen=True)
class _Once(Generic[Item]):
    """A function whose result, JSON, is also left in a file."""

    function: Callable[[Item], Any]

    def __call__(self, work: tuple[Path, Item]) -> Any:
        file, item = work
        found = json.dumps(self.function(item))
        with whole_anywhere(file) as unfinished:
            unfinished.write_text(found, encoding="utf-8")
        return json.loads(found)


def map_once(
    engine: Engine, folder: Path, function: Callable[[Item], Any], items: Sequence[Item]
) -> Iterator[tuple[Any, bool]]:
    """The results, as JSON holds them, and whether each was there from before: a folder keeps them for a run that
    starts again after a kill."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number}.json" for number in range(len(items))]
    there = [file.exists() for file in files]
    left = [(file, item) for file, item, known in zip(files, items, there, strict=True) if not known]
    found = iter(engine.map(_Once(function), left))
    for file, known in zip(files, there, strict=True):
        yield (json.loads(file.read_text(encoding="utf-8")) if known else next(found)), known
