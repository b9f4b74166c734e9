"""The codes of all fields from counts of shards: each shard of the staged training rows is counted by itself, then the
counts of each column are summed. Sums of whole numbers are the same in any order, so the codes are those of fit.py.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from fieldwise.config.files import whole_anywhere
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.engine import Engine, map_once
from fieldwise.data.encode.fit import Fits, Group, Source, groups_of, most_together, opened
from fieldwise.data.encode.lifetimes import Lifetimes
from fieldwise.data.encode.staged import Progress, staged_files, staged_rows, staged_schema
from fieldwise.data.kinds.counted import Query
from fieldwise.data.read.formats import quoted
from fieldwise.data.read.parallel import threads
from fieldwise.data.schema import Schema

# Rows that are counted together: the more, the fewer values are written more than once.
SHARD_ROWS = 1_000_000
# Where the counts are, under the staged rows.
FOLDER = "counts"


def fit_in_shards(
    schema: Schema,
    staged: Path,
    progress: Progress,
    known: Encoder | None,
    engine: Engine,
    kept: Path,
    lifetimes: Lifetimes | None = None,
) -> Encoder:
    """The codes that `fit_encoder` fits; the names of finished shards are left in the folder `kept`."""
    table, shards = staged_schema(staged), shards_of(staged_files(staged))
    most = most_together(max(sum(map(staged_rows, files)) for files in shards), len(table))
    groups = list(groups_of(schema, table, most))
    counting = _Counting(table, [list(group.values()) for group in groups], staged.parent / FOLDER)
    counting.folder.mkdir(exist_ok=True)
    rows = 0
    for own, _ in map_once(engine, kept / FOLDER, counting, list(enumerate(shards))):
        rows += own
        progress("counting", rows)
    fits = Fits(schema, known, lifetimes)
    # On the driver, one group after another: what a chain of folders remembers of values is one table.
    with opened(staged.parent, threads()) as base:
        for number, group in enumerate(groups):
            fits.take(group, _Summed(base, counting, number, len(shards)))
            progress("fitting", len(fits.codes))
    return fits.encoder()


def shards_of(files: Sequence[Path]) -> list[list[Path]]:
    """Staged files that are counted together."""
    found: list[list[Path]] = []
    left = 0
    for file in files:
        rows = staged_rows(file)
        if rows > left:
            found.append([])
            left = SHARD_ROWS
        found[-1].append(file)
        left -= rows
    return found


@dataclass(frozen=True)
class _Counting:
    """A shard's number and files -> its rows; what was counted of each group of columns is left in files."""

    table: pa.Schema
    groups: Sequence[Sequence[Query]]
    folder: Path

    def counts(self, shard: int, group: int) -> Path:
        return self.folder / f"{shard:06d}.{group}.parquet"

    def longest(self, shard: int) -> Path:
        """For each group of sets, the longest cells of each of its columns."""
        return self.folder / f"{shard:06d}.longest.json"

    def __call__(self, work: tuple[int, Sequence[Path]]) -> int:
        shard, files = work
        source, longest = Source.of(self.table, *map(str, files)), {}
        with tempfile.TemporaryDirectory() as spilled, opened(Path(spilled), 1) as base:
            for number, queries in enumerate(self.groups):
                group = Group(base, source, queries)
                if queries[0].counted:
                    rows = f"SELECT k, v, n::BIGINT AS n, p::BIGINT AS p FROM {group.counts}"
                    with whole_anywhere(self.counts(shard, number)) as file:
                        base.execute(f"COPY ({rows}) TO {quoted(str(file))} (FORMAT parquet)")
                if queries[0].several:
                    longest[number] = list(group.longest.items())
        with whole_anywhere(self.longest(shard)) as file:
            file.write_text(json.dumps(longest), encoding="utf-8")
        return sum(map(staged_rows, files))


class _Summed(Group):
    """The counts of a group of columns, summed over shards."""

    def __init__(self, base: Any, counting: _Counting, number: int, shards: int) -> None:
        self.base, self.queries, self.number = base, counting.groups[number], number
        self.counting, self.shards = counting, shards

    @cached_property
    def counts(self) -> str:
        assert self.queries[0].counted, "a kind asks for what its query says that it does not"
        files = ", ".join(quoted(str(self.counting.counts(shard, self.number))) for shard in range(self.shards))
        k, by = ("k", "k, v") if len(self.queries) > 1 else ("0", "v")
        summed = f"SELECT {k} AS k, v, sum(n)::BIGINT AS n, sum(p)::BIGINT AS p"
        self.base.execute(f"CREATE OR REPLACE TEMP TABLE counts AS {summed} FROM read_parquet([{files}]) GROUP BY {by}")
        return "counts"

    @cached_property
    def longest(self) -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        for shard in range(self.shards):
            text = self.counting.longest(shard).read_text(encoding="utf-8")
            for k, longest in json.loads(text)[str(self.number)]:
                found[k] = max(longest or 0, found.get(k) or 0)
        return found
