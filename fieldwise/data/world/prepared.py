"""A world's log as a prepared folder, without its text: drawn codes become ids at once, by all cores.

A column of a world is a list of values, and a cell is the code of one of them. So it is enough to count codes, to fit
the fields on the counts, and to look the id of each code up in a table. The folder is what `prepare` leaves of the
same log, byte for byte. The rows are drawn twice, once to be counted and once to be encoded, because that is cheaper
than to keep them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError
from fieldwise.config.files import whole_folder
from fieldwise.data.dataset import PARTS, Level, Tally, write_facts
from fieldwise.data.encode.encode import first_digest, open_files, split_ranks
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.infer import SAMPLE_ROWS, infer_schema
from fieldwise.data.encode.levels import Levels
from fieldwise.data.encode.lifetimes import Lifetimes
from fieldwise.data.encode.prepare import field_facts, held_out_notes
from fieldwise.data.encode.split import Split, at_random, order_bounds
from fieldwise.data.encode.stage import check_training
from fieldwise.data.encode.staged import Progress
from fieldwise.data.encode.unseen import shares_to_hide
from fieldwise.data.kinds.buckets import Histogram
from fieldwise.data.kinds.counted import Piece, Query, summed
from fieldwise.data.kinds.kind import Code
from fieldwise.data.kinds.kind import Field as SchemaField
from fieldwise.data.kinds.number import as_number
from fieldwise.data.kinds.ranks import fitted
from fieldwise.data.read.formats import text_of
from fieldwise.data.read.parallel import cores, in_order, using
from fieldwise.data.read.texts import texts_of
from fieldwise.data.schema import ROW_ORDER, check_names
from fieldwise.data.world.fields import Field
from fieldwise.data.world.world import Block, Span, World

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int32]
Whole = NDArray[np.int64]
# What else `prepare` notes about a folder, and a log that went straight to ids never has.
NOT_THERE: dict[str, Any] = {
    "negatives_kept": 1.0,
    "new_ids": {},
    "expired": {},
    "proposals": [],
    "leak": None,
    "giveaways": [],
    "rows_kept_for": (),
}


def prepare_log(
    world: World,
    span: Span,
    out: Path,
    split: Split | None = None,
    drop: Collection[str] = (),
    progress: Progress = lambda step, rows: None,
    threads: int = 0,
) -> dict[str, Any]:
    """Writes the prepared folder `out` of a world's log and returns its facts, as `prepare` does.

    Rows are split at random or in their order; all columns but those to `drop` may become fields. `threads` (0: all
    cores) change nothing but the time.
    """
    split = split or Split()
    if split.group or split.by not in ("", ROW_ORDER):
        found = ",".join(split.group) or split.by
        raise ConfigError(f"a log becomes ids split at random or by {ROW_ORDER}, found {found}; prepare a file of it")
    if threads < 0:
        raise ConfigError(f"--threads takes a number of threads, 0 for all cores, found {threads}")
    names = [name for name in world.field_names if name not in drop]
    with whole_folder(out, "data.json") as folder, using(threads or cores()):
        rows = _Rows(world, span, names)
        rows.draw(split, progress)
        count, positives = (found.get("train", 0) for found in (rows.counts, rows.positives))
        check_training(count, positives, world.label, "the world's rows")
        schema, left_out = infer_schema(*rows.sample(), world.label, later=rows.last())
        check_names(schema.names)
        (folder / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
        encoder = Encoder(schema, list(in_order(rows.fit, schema.fields)))
        encoder.lifetimes = rows.lifetimes(encoder)
        encoder.save(folder / "encoder")
        digest = rows.encode(encoder, folder, progress)
        tally = Tally(rows.counts, rows.positives, rows.levels(split))
        hide = shares_to_hide(encoder, folder, tally)
        write_facts(folder, encoder.names, encoder.layout, tally, 1.0, digest, hide)
    return {
        "data": str(out),
        "rows": rows.counts,
        "positive_rate": {part: rows.positives[part] / count for part, count in rows.counts.items()},
        "fields": field_facts(encoder),
        **NOT_THERE,
        "notes": [*held_out_notes(tally, None), *left_out],
    }


def values_shown(world: World, span: Span) -> tuple[dict[str, int], int]:
    """How many values a log shows of each field, of sets how many members; and how many of its rows are positive."""
    rows = _Rows(world, span, world.field_names)
    with using(cores()):
        rows.draw(Split((1.0, 0.0, 0.0)), lambda step, done: None)
    found = {}
    for name, own in world.fields.items():
        query = Query(name, several=own.column.style == "set", separator="|")
        found[name] = len(rows.counted(name, query).texts)
    return found, rows.positives["train"]


@dataclass
class _Rows:
    """The rows of a log: the part and the label of each are kept, in a byte each; their codes are drawn again."""

    world: World
    span: Span
    names: Sequence[str]
    parts: list[Bytes] = field(default_factory=list)
    labels: list[Bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Missing and unknown have codes too, behind those of the values.
        sizes = [self.world.fields[name].size + 2 for name in self.names]
        self.firsts = np.cumsum([0, *sizes])
        self.tallies: deque[Whole] = deque()

    @cached_property
    def counts(self) -> dict[str, int]:
        """The rows of each part that has any."""
        counts = np.sum([np.bincount(parts, minlength=len(PARTS)) for parts in self.parts], axis=0)
        return {part: int(count) for part, count in zip(PARTS, counts, strict=True) if count}

    @cached_property
    def positives(self) -> dict[str, int]:
        both = list(zip(self.parts, self.labels, strict=True))
        return {
            part: sum(int(labels[parts == PARTS.index(part)].sum()) for parts, labels in both) for part in self.counts
        }

    def levels(self, split: Split) -> tuple[Level, ...]:
        """The blocks of time, where the order of the rows is the time."""
        found, passed = Levels(split), 0
        for labels in self.labels if split.by else ():
            found.add_in_order(labels, passed)
            passed += len(labels)
        return tuple(found.blocks)

    def draw(self, split: Split, progress: Progress) -> None:
        """Draws all rows, and counts the codes of the training rows."""
        done = 0
        for rows in in_order(self._tally, self._parted(split)):
            done += rows
            progress("drawing", done)

    def _parted(self, split: Split) -> Iterator[tuple[Block, Bytes, Bytes]]:
        """The blocks in order, each with the labels of its rows and their parts."""
        random, bounds = at_random(split), order_bounds(split, self.span.rows)
        blocks = in_order(partial(self.world.block, self.span), self.span.starts)
        for start, drawn in zip(self.span.starts, blocks, strict=True):
            labels = drawn.clicks.astype(np.uint8)
            rows = np.arange(start, start + len(labels))
            parts = np.searchsorted(bounds, rows, side="right") if split.by else random(labels)
            self.labels.append(labels)
            self.parts.append(parts.astype(np.uint8))
            yield drawn, labels, self.parts[-1]

    def _tally(self, block: tuple[Block, Bytes, Bytes]) -> int:
        from fieldwise.data.world import world_loops

        drawn, labels, parts = block
        # Threads that count at the same time have a table each.
        try:
            tally = self.tallies.pop()
        except IndexError:
            tally = np.zeros((self.firsts[-1], 2), dtype=np.int64)
        world_loops.count(self._stacked(drawn.codes, self.names), parts == 0, labels, self.firsts, tally)
        self.tallies.append(tally)
        return len(labels)

    @staticmethod
    def _stacked(codes: Mapping[str, Whole], names: Sequence[str]) -> Whole:
        return np.stack([codes[name] for name in names])

    @cached_property
    def total(self) -> Whole:
        """Rows and positives (V, 2) of all codes among the training rows."""
        return np.asarray(np.sum(list(self.tallies), axis=0))

    def counted(self, name: str, query: Query) -> Counted:
        """What a field is fitted on."""
        place, own = self.firsts[self.names.index(name)], self.world.fields[name]
        return Counted(own.values, self.total[place : place + own.size], query)

    def fit(self, one: SchemaField) -> Code:
        return fitted(one, self.counted(one.column, one.query(one.column, False)))

    def lifetimes(self, encoder: Encoder) -> Lifetimes:
        """What is remembered of values without an id."""
        found = Lifetimes()
        for code in encoder.codes:
            found.first(code, self.counted(code.field.column, code.field.query(code.field.column, False)))
        found.close(encoder.schema.fields)
        return found

    def sample(self) -> tuple[pa.Table, NDArray[np.float32]]:
        """The first training rows as they would be logged, and their labels."""
        tables, labels, left = [], [], SAMPLE_ROWS
        for start, parts, clicks in zip(self.span.starts, self.parts, self.labels, strict=True):
            rows = np.flatnonzero(parts == 0)[:left]
            tables.append(self._logged(start, rows))
            labels.append(clicks[rows].astype(np.float32))
            left -= len(rows)
            if not left:
                break
        return pa.concat_tables(tables), np.concatenate(labels)

    def last(self) -> pa.Table | None:
        """The last block's training rows, where the first ones are not all."""
        if self.counts["train"] <= SAMPLE_ROWS:
            return None
        blocks = zip(self.span.starts, self.parts, strict=True)
        start, parts = [(start, parts) for start, parts in blocks if (parts == 0).any()][-1]
        return self._logged(start, np.flatnonzero(parts == 0))

    def _logged(self, start: int, rows: Whole) -> pa.Table:
        """Some rows of a block as they would be logged."""
        codes = {name: code[rows] for name, code in self.world.codes(self.span, start).items()}
        return pa.table(self.world.raw(codes)).select(list(self.names))

    def encode(self, encoder: Encoder, folder: Path, progress: Progress) -> str:
        """Draws all rows again and writes their ids and labels; returns a digest of them."""
        digest, coded = first_digest(encoder), _coder(encoder, self.world)
        names = [code.field.column for code in (*encoder.codes, *(code for code in encoder.codes if code.ranks))]
        done = 0

        def block(number: int) -> dict[str, tuple[Ids, Bytes]]:
            codes = self._stacked(self.world.codes(self.span, self.span.starts[number]), names)
            places = {part: np.flatnonzero(self.parts[number] == PARTS.index(part)) for part in self.counts}
            return {part: (coded(codes, rows), self.labels[number][rows]) for part, rows in places.items()}

        with ExitStack() as stack:
            files = {part: open_files(stack, encoder, folder / part, rows) for part, rows in self.counts.items()}
            for found in in_order(block, range(len(self.parts))):
                for part, (ids, labels) in found.items():
                    for name, values in {**split_ranks(encoder, ids), "labels": labels}.items():
                        files[part][name].append(values)
                    done += len(labels)
                progress("encoding", done)
            for one in files.values():
                for file in one.values():
                    digest.update(file.digest.digest())
        return digest.hexdigest()


def _coder(encoder: Encoder, world: World) -> Callable[[Whole, Whole], Ids]:
    """A function from codes (F, B) and some of the rows (n,) to their ids (n, C)."""
    from fieldwise.data.world import world_loops

    codes = [*encoder.codes, *(code.ranks for code in encoder.codes if code.ranks)]
    tables = list(in_order(lambda code: _ids_of(world.fields[code.field.column], code), codes))
    widths = np.array([code.width for code in codes])
    firsts, table = np.cumsum([0, *map(len, tables)]), np.concatenate(tables)

    def coded(codes: Whole, rows: Whole) -> Ids:
        ids = np.empty((len(rows), encoder.layout.columns), dtype=np.int32)
        world_loops.encode(codes, rows, firsts, widths, table, ids)
        return ids

    return coded


def _ids_of(own: Field, code: Code) -> Ids:
    """The ids of a column's codes, one after the other: those of its values, and those of a missing one."""
    values = pa.concat_arrays([own.values, pa.nulls(1, own.values.type)])
    return code.column_ids(pa.chunked_array([values])).reshape(-1)


@dataclass(frozen=True)
class Counted:
    """A column of the training rows, as kinds/counted.py asks for it: its values, and counts (V, 2) of their rows."""

    values: pa.Array
    counts: Whole
    query: Query

    @property
    def texts(self) -> list[tuple[str, int]]:
        seen = self._seen(1 if self.query.several else max(1, self.query.least))
        if not self.query.several:
            return seen
        return summed((member, n) for text, n in seen for member in self._members(text))

    @property
    def rest(self) -> Iterator[Piece]:
        rare = [] if self.query.several else [each for each in self._seen() if each[0] and each[1] < self.query.least]
        texts = pa.array([text for text, _ in rare], pa.string())
        yield texts, np.array([n for _, n in rare], dtype=np.int64)

    @property
    def histogram(self) -> Histogram:
        there = self.counts[:, 0] > 0
        numbers = np.array([as_number(text_of(value)) for value in self.values.to_pylist()], dtype=np.float64)
        there &= np.isfinite(numbers)
        values, places = np.unique(numbers[there], return_inverse=True)
        counts, positives = (np.bincount(places, weights=n).astype(np.int64) for n in self.counts[there].T)
        return Histogram(values, counts, positives)

    @property
    def odd_texts(self) -> list[str]:
        return [text for text, _ in self._seen() if as_number(text) is None][:100]

    @property
    def longest(self) -> int:
        return max((len(self._members(text)) for text, _ in self._seen()), default=0)

    def _seen(self, least: int = 1) -> list[tuple[str, int]]:
        """Texts of at least `least` rows, with their counts; the most frequent first, as a vocabulary has them."""
        places = np.flatnonzero(self.counts[:, 0] >= least)
        if not len(places):
            return []
        # Some sets are the same, and a text is to be there once.
        texts, which = texts_of(pa.chunked_array([self.values.take(pa.array(places))]))
        rows = np.bincount(which, weights=self.counts[places, 0]).astype(np.int64)
        table = pa.table({"text": pa.array(texts[: len(rows)], pa.string()), "n": rows})
        table = table.sort_by([("n", "descending"), ("text", "ascending")])
        return list(zip(table["text"].to_pylist(), table["n"].to_pylist(), strict=True))

    def _members(self, cell: str) -> dict[str, None]:
        return dict.fromkeys(text_of(member) or "" for member in cell.split(self.query.separator))
