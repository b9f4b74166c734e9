"""What the user asked and what a recipe says -> the plan that `prepare` carries out, and the files behind it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from fieldwise.config.errors import ConfigError, DataError, unknown
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.plan import Inputs, Plan
from fieldwise.data.encode.split import Rows, Split
from fieldwise.data.encode.usable import usable
from fieldwise.data.read import formats
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.line_blocks import is_plain
from fieldwise.data.read.texts import texts_of
from fieldwise.data.recipes import find
from fieldwise.data.recipes.raw_columns import Reader
from fieldwise.data.recipes.recipe import Recipe
from fieldwise.data.schema import ROW_ORDER, HistorySettings, Schema

SHARES = (0.8, 0.1, 0.1)


@dataclass(frozen=True)
class Asked:
    """What the user says of the rows; what is left open the recipe decides, where there is one."""

    files: Sequence[Path]
    valid: Path | None = None
    test: Path | None = None
    label: str = ""
    weight: str = ""
    schema: Schema | None = None
    recipe: str = ""
    shares: tuple[float, float, float] | None = None
    split_by: str = ""
    split_group: tuple[str, ...] = ()
    seed: int = 0
    drop: Collection[str] = ()
    keep_negatives: float | None = None
    history: HistorySettings | None = None
    gbdt_leaves: int | None = None
    known: Encoder | None = None
    skip_bad_rows: bool = False
    threads: int = 0
    keep_rows: bool = False

    def __post_init__(self) -> None:
        if self.known and (self.history or self.gbdt_leaves or self.recipe or self.drop):
            kept = "--continue-from keeps fields and recipe as they are"
            raise ConfigError(f"{kept}; leave out --history, --gbdt-leaves, --recipe, --drop")


@dataclass(frozen=True)
class Files:
    """The files of each part, how they are read, and the notes about them."""

    parts: dict[str, list[Path]]
    bad: BadRows
    reader: Reader | None = None
    continues: bool = False
    left_out: str = ""

    @property
    def recipe(self) -> str:
        """The name that the schema remembers."""
        return self.reader.recipe.name if self.reader else ""

    @property
    def names(self) -> dict[str, str]:
        """Where the rows of each part come from, for errors."""
        return {part: ", ".join(map(str, paths)) for part, paths in self.parts.items()}

    @property
    def inputs(self) -> Inputs | None:
        """What a prepare that was killed is known by; none where rows are skipped, for the count would start anew."""
        reading = (self.recipe, self.reader.balance, self.reader.seed) if self.reader else ()
        return None if self.bad.skip else Inputs(_every(self.parts), repr(reading))

    def locate(self, column: str, text: str | None) -> str:
        """The file and the line, or row, of the first cell of a column that holds a text; the files are read again."""
        for path in _every(self.parts):
            read = self.reader.rows if self.reader else formats.read
            passed = 0
            for chunk in read([path], [column]):
                texts, places = texts_of(chunk[column])
                if text in texts and (places == texts.index(text)).any():
                    row = passed + int(np.argmax(places == texts.index(text))) + 1
                    return f"{path}, {self._place(path, row)}"
                passed += len(chunk)
        return ", ".join(map(str, _every(self.parts)))

    def _place(self, path: Path, row: int) -> str:
        """A row's line, where every line is a row."""
        kind = "txt" if self.reader else formats.format_of(path)
        header = self.reader.recipe.header if self.reader else kind in ("csv", "tsv")
        is_text = kind != "parquet" and not self.bad.skip
        return f"line {row + header}" if is_text and is_plain(path) else f"row {row}"

    def notes(self) -> list[str]:
        """The notes about the files, once the rows have been read."""
        complete = self.reader.notes(self.parts) if self.reader and not self.continues else []
        index = (
            f"column '{self.left_out}' has no name and numbers the rows, as the index of a pandas table does: left out"
        )
        left_out = [f"{index}; a schema that names it keeps it"] if self.left_out else []
        return [*self.bad.notes(), *left_out, *complete]


def _every(parts: Mapping[str, list[Path]]) -> list[Path]:
    """The files of all parts."""
    return [path for paths in parts.values() for path in paths]


def plan_of(asked: Asked) -> tuple[Plan, Files]:
    """How to prepare what was asked for, and from which files."""
    given = asked.schema or (asked.known.schema if asked.known else None)
    name = asked.recipe or (given.recipe if given else "")
    recipe = find(name) if name else None
    schema = given or (recipe.schema if recipe else None)
    if recipe and schema:
        schema = _dropped(schema, recipe, asked.drop)
    label = asked.label or (given.label if given else recipe.label if recipe else "")
    if not label:
        raise ConfigError("--label is missing: name the column that holds the 0/1 response")
    if schema:
        leaves = schema.gbdt_leaves if asked.gbdt_leaves is None else asked.gbdt_leaves
        schema = replace(schema, label=label, gbdt_leaves=leaves)
    weight, split = asked.weight or (schema.weight if schema else ""), _split(asked, recipe)
    parts, bad = _parts(asked, recipe, split), BadRows(asked.skip_bad_rows)
    if recipe:
        reader = _reader(asked, recipe, schema, label, parts, bad)
        files = Files(parts, bad, reader, bool(asked.known))
        columns = _columns(asked, schema, split, label, weight) if schema else None
        sources: dict[str, Rows] = {part: partial(reader.rows, paths, columns) for part, paths in parts.items()}
        drop = () if schema else tuple(asked.drop)
    else:
        sources = _plain_sources(parts, schema, label, bad)
        index = "" if schema else formats.index_column(parts["train"][0], bad)
        files = Files(parts, bad, left_out=index if index not in asked.drop else "")
        drop = (*asked.drop, files.left_out) if files.left_out else tuple(asked.drop)
    plan = Plan(
        sources=sources,
        label=label,
        schema=schema,
        split=split,
        weight=weight,
        drop=drop,
        names=files.names,
        keep_negatives=1.0 if asked.keep_negatives is None else asked.keep_negatives,
        gbdt_leaves=asked.gbdt_leaves or 0,
        history=asked.history,
        known=asked.known,
        recipe=files.recipe,
        threads=asked.threads,
        inputs=files.inputs,
        keep_rows=asked.keep_rows,
    )
    return plan, files


def _reader(
    asked: Asked, recipe: Recipe, schema: Schema | None, label: str, parts: Mapping[str, list[Path]], bad: BadRows
) -> Reader:
    """How a recipe reads its files, each of which must have the label."""
    every = _every(parts)
    inferred = formats.number_fields(every, recipe.kind, bad) if recipe.kind else None
    balance = recipe.balance and asked.keep_negatives is None
    reader = Reader(recipe, bad, balance, asked.seed, label, schema.numbers if schema else inferred)
    for path in every:
        if label not in (known := reader.columns(path)):
            found = ", ".join(known)
            raise DataError(f"recipe '{recipe.name}' found no label '{label}' in the file: {found} ({path})")
    return reader


def _plain_sources(parts: Mapping[str, list[Path]], schema: Schema | None, label: str, bad: BadRows) -> dict[str, Rows]:
    every = _every(parts)
    for path in every:
        formats.column_names(path, bad=bad)
    numbers = schema.numbers if schema else formats.number_fields(every, bad=bad)

    def rows(paths: list[Path]) -> Iterator[pa.Table]:
        for path, chunks in formats.read_each(paths, None, numbers, bad):
            yield from usable(bad, path, chunks, label, schema.numbers if schema else ())

    return {part: partial(rows, paths) for part, paths in parts.items()}


def _dropped(schema: Schema, recipe: Recipe, drop: Collection[str]) -> Schema:
    """A schema without the fields to drop; those that it lacks already must be the recipe's at least."""
    known = {*schema.names, *(recipe.schema.names if recipe.schema else ())}
    for name in drop:
        if name not in known:
            raise ConfigError(f"--drop: {unknown('field of the recipe', name, known)}")
    return schema.without(drop)


def _split(asked: Asked, recipe: Recipe | None) -> Split:
    """The user's split; what it leaves open, the recipe's. `--split-by none` is at random."""
    shares = asked.shares or (recipe.shares if recipe else SHARES)
    by = asked.split_by or (recipe.by if recipe and not asked.split_group and not asked.valid else "")
    return Split(shares, "" if by == "none" else by, asked.seed, asked.split_group)


def _parts(asked: Asked, recipe: Recipe | None, split: Split) -> dict[str, list[Path]]:
    """Which files hold the rows of which part."""
    apart = {part: [path] for part, path in (("valid", asked.valid), ("test", asked.test)) if path}
    if recipe is None or apart or asked.known or not recipe.parts:
        return {"train": _any_files(recipe, asked.files) if recipe else list(asked.files), **apart}
    found: dict[str, list[Path]] = {}
    for path in _files(recipe, asked.files):
        found.setdefault(recipe.part_of(path), []).append(path)
    if asked.shares or asked.split_by or asked.split_group:
        held = [] if split.shares[2] else found.pop("test", [])
        found = {"train": [path for paths in found.values() for path in paths], **({"test": held} if held else {})}
    if not found.get("train"):
        raise DataError(f"recipe '{recipe.name}' takes {recipe.files}; found no training rows among the files")
    return {part: found[part] for part in ("train", "valid", "test") if part in found}


def _any_files(recipe: Recipe, given: Sequence[Path]) -> list[Path]:
    """Files of any name, without those that are read beside others."""
    files = [path for path in given if not _is_aside(recipe, path)]
    for path in files:
        if path.is_dir():
            raise DataError(f"recipe '{recipe.name}' takes {recipe.files}; found a folder ({path})")
    return files


def _is_aside(recipe: Recipe, path: Path) -> bool:
    return bool(recipe.aside and re.fullmatch(recipe.aside, path.name))


def _files(recipe: Recipe, given: Sequence[Path]) -> list[Path]:
    """The files of a recipe, day_9 before day_10; folders stand for what the recipe knows in them."""
    files = []
    for path in given:
        if path.is_dir():
            inside = sorted(
                (file for file in path.rglob("*") if file.is_file() and recipe.part_of(file)), key=_by_number
            )
            if not inside:
                raise DataError(
                    f"recipe '{recipe.name}' takes {recipe.files}; found none of them in the folder ({path})"
                )
            files += inside
        elif not _is_aside(recipe, path):
            if not recipe.part_of(path):
                way_out = (
                    "a file of another name is given with --valid or --test, and the others are training rows then"
                )
                raise DataError(f"recipe '{recipe.name}' takes {recipe.files}; found {path}; {way_out}")
            files.append(path)
    return files


def _by_number(path: Path) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", str(path))]


def _columns(asked: Asked, schema: Schema, split: Split, label: str, weight: str) -> list[str]:
    """The columns to read: those of the fields, and what the label, the split and the history need."""
    history = asked.history or schema.history
    by = split.by if split.by != ROW_ORDER else ""
    return [n for n in dict.fromkeys([label, weight, *schema.columns, *history.columns_needed, by, *split.group]) if n]
