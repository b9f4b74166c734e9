"""Rows for studies: simulated worlds, tables made by a study, and real data, if a folder has them.

A folder of real data has frappe/{train,valid,test}.csv, criteo80k/criteo80k.tsv (no header), avazu20k/avazu20k.csv and
amazon/amazon.csv, each with the published columns; missing ones are skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.schema import Field, HistorySettings, Schema
from fieldwise.data.world import World
from fieldwise.data.world.prepared import prepare_log
from fieldwise.data.world.world import ACTIVE, NETWORKS
from fieldwise.studies.study import Shared, Source

PART = "part"
CONTEXT = ("daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")


def world(
    kind: str,
    rows: int,
    seed: int = 0,
    history: HistorySettings | None = None,
    split: Split | None = None,
    rate: float | None = None,
    networks: float = NETWORKS,
    active: float = ACTIVE,
) -> Source:
    """The log of a simulated world, its day left out: it is no field, for the days of held-out rows are new.

    It becomes ids without its text, unless there is a history.
    """

    def make(folder: Path) -> None:
        made = World(kind, seed, rate, networks=networks, active=active)
        if history is None:
            prepare_log(made, made.span(rows, seed), folder, split, drop=["day"])
            return
        log = made.log(rows, seed).table
        table = log.drop_columns(["day"] if "day" in log.column_names else [])
        prepare({"train": lambda: iter([table])}, folder, "click", split=split, history=history)

    if history is not None:
        return make
    decided = repr((kind, rows, seed, split, rate, networks, active)).encode()
    return Shared(f"{kind}-{rows}-{seed}-{hashlib.sha256(decided).hexdigest()[:8]}", make)


def codes(make: Callable[[], pa.Table]) -> Source:
    """A table of integers, in which every column is a category without a minimum count; `part` is the split."""

    def prepared(folder: Path) -> None:
        table = make()
        names = [name for name in table.column_names if name not in ("click", PART)]
        schema = Schema("click", tuple(Field(name, min_count=1) for name in names))
        prepare({"train": lambda: iter([table])}, folder, "click", schema, Split(by=PART))

    return prepared


def parts_of(rows: Sequence[int]) -> list[str]:
    """The column `part`, with these numbers of train, valid and test rows."""
    return [part for part, count in zip(("train", "valid", "test"), rows, strict=True) for _ in range(count)]


def _read(path: Path, names: Sequence[str] | None = None) -> pa.Table:
    separator = "\t" if path.suffix == ".tsv" else ","
    options = pacsv.ReadOptions(column_names=list(names) if names else None)
    parse = pacsv.ParseOptions(delimiter=separator)
    text = pacsv.ConvertOptions(strings_can_be_null=True)
    return pacsv.read_csv(path, options, parse, text)


def frappe(folder: Path, history: HistorySettings | None, most: int, grouped: bool) -> Source:
    """Frappe as published or, `grouped`, with rows of the same user and context in one part."""

    def make(out: Path) -> None:
        tables = {part: _read(folder / "frappe" / f"{part}.csv") for part in ("train", "valid", "test")}
        if not grouped:
            kept = {part: _users(table, most, "user") for part, table in tables.items()}
            sources = {part: (lambda table=table: iter([table])) for part, table in kept.items()}
            prepare(sources, out, "label", history=history)
            return
        table = _users(pa.concat_tables(tables.values()), most, "user")
        split = Split((0.7, 0.2, 0.1), group=("user", *CONTEXT))
        prepare({"train": lambda: iter([table])}, out, "label", split=split, history=history)

    return make


def _users(table: pa.Table, most: int, column: str) -> pa.Table:
    """The rows of the first users, about `most` rows: a small study has fewer users, but their full histories."""
    values = np.asarray(table[column])
    kept = np.unique(values)[: max(1, int(len(np.unique(values)) * min(1.0, most / len(values))))]
    return table.filter(pa.array(np.isin(values, kept))) if most < len(values) else table


def criteo(folder: Path, history: HistorySettings | None, most: int) -> Source:
    """Criteo's first rows, split 80/10/10 by time; numbers in 16 quantiles."""

    def make(out: Path) -> None:
        numbers, words = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
        table = _read(folder / "criteo80k" / "criteo80k.tsv", ["label", *numbers, *words]).slice(0, most)
        fields = [Field(name, "numeric", buckets="quantile", max_buckets=16) for name in numbers]
        schema = Schema("label", (*fields, *(Field(name, min_count=5) for name in words)))
        prepare({"train": lambda: iter([table])}, out, "label", schema, Split(by="row"), history=history)

    return make


def avazu(folder: Path, history: HistorySettings | None, most: int) -> Source:
    """Avazu, split 70/15/15 by the hour; the field is the hour of the day."""

    def make(out: Path) -> None:
        table = _read(folder / "avazu20k" / "avazu20k.csv").drop_columns("id").slice(0, most)
        hours = pa.array([str(int(hour) % 100) for hour in table["hour"].to_pylist()])
        table = table.append_column("hour_of_day", hours)
        names = [name for name in table.column_names if name not in ("click", "hour")]
        schema = Schema("click", tuple(Field(name) for name in names))
        split = Split((0.7, 0.15, 0.15), by="hour")
        prepare({"train": lambda: iter([table])}, out, "click", schema, split, history=history)

    return make


def amazon(folder: Path, history: HistorySettings | None, most: int, fold: int) -> Source:
    """Amazon's access requests: one of five folds for test, an eighth of the rest for validation."""

    def make(out: Path) -> None:
        table = _read(folder / "amazon" / "amazon.csv").slice(0, most)
        rng = np.random.default_rng(5)
        order = rng.permutation(len(table))
        where = np.where(order % 5 == fold % 5, "test", np.where(rng.random(len(table)) < 1 / 8, "valid", "train"))
        table = table.append_column(PART, pa.array(where.tolist()))
        names = [name for name in table.column_names if name not in ("ACTION", PART)]
        schema = Schema("ACTION", tuple(Field(name) for name in names))
        prepare({"train": lambda: iter([table])}, out, "ACTION", schema, Split(by=PART), history=history)

    return make
