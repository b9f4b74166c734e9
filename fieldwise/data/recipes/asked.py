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
from fieldwise.data.kinds.past import PastField
from fieldwise.data.kinds.samples import Sample
from fieldwise.data.kinds.time import Times, order_of, promising
from fieldwise.data.read import delimited, formats, sparse
from fieldwise.data.read.bad_rows import BadRows
from fieldwise.data.read.labels import ZERO_ONE, Classes, find_classes
from fieldwise.data.read.line_blocks import is_plain
from fieldwise.data.read.texts import texts_of
from fieldwise.data.recipes import find
from fieldwise.data.recipes.raw_columns import Reader
from fieldwise.data.recipes.recipe import Recipe
from fieldwise.data.recipes.row_sources import PlainRows, RecipeRows
from fieldwise.data.schema import HISTORY_PARTS, ROW_ORDER, HistorySettings, Schema

SHARES = (0.8, 0.1, 0.1)
# Rows that show which column is a time, and the first of them, which show which ones it may be.
LOOKED_AT, GLANCED_AT = 20_000, 100


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
    sequences: tuple[PastField, ...] = ()
    gbdt_leaves: int | None = None
    known: Encoder | None = None
    skip_bad_rows: bool = False
    threads: int = 0
    keep_rows: bool = False
    positive: str = ""
    separator: str = ""
    position: str = ""
    # Whether the order of a history is left open.
    any_order: bool = True
    expire_after: Sequence[str] = ()

    def __post_init__(self) -> None:
        kept = self.history or self.sequences or self.gbdt_leaves or self.recipe or self.drop or self.position
        if self.known and kept:
            rule = "--continue-from keeps fields and recipe as they are"
            raise ConfigError(f"{rule}; leave out --history, --sequence, --gbdt-leaves, --recipe, --drop, --position")


@dataclass(frozen=True)
class Files:
    """The files of each part, how they are read, and the notes about them."""

    parts: dict[str, list[Path]]
    bad: BadRows
    reader: Reader | None = None
    continues: bool = False
    left_out: Sequence[str] = ()
    classes: Classes = ZERO_ONE
    named_classes: bool = False
    separator: str = ""
    history_time: str = ""
    sequence_time: str = ""

    @property
    def recipe(self) -> str:
        """The name that the schema remembers."""
        return self.reader.recipe.name if self.reader else ""

    @property
    def names(self) -> dict[str, str]:
        """Where the rows of each part come from, for errors."""
        return {part: ", ".join(map(str, paths)) for part, paths in self.parts.items()}

    @property
    def inputs(self) -> Inputs:
        """What a prepare that was killed is known by."""
        reading = (self.recipe, self.reader.balance, self.reader.seed) if self.reader else (self.separator,)
        return Inputs(_every(self.parts), repr((*reading, self.bad.skip)))

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
        return [*self.bad.notes(), *self._separators(), *self._label(), *self._left_out(), *self._history(), *complete]

    def _separators(self) -> list[str]:
        if self.reader or self.separator:
            return []
        return [
            f"{path} has {delimited.words_of(found)} between its cells (--separator says otherwise)"
            for path in _every(self.parts)
            if (found := formats.found_separator(path))
        ]

    def _label(self) -> list[str]:
        if not self.classes.positive:
            return []
        way_out = "" if self.named_classes else f" (--positive {self.classes.negative}: the other way round)"
        return [f"label: '{self.classes.positive}' is 1, '{self.classes.negative}' is 0{way_out}"]

    def _left_out(self) -> list[str]:
        why = "has no name and numbers the rows, as the index of a pandas table does: left out"
        return [f"column '{name}' {why}; a schema that names it keeps it" for name in self.left_out]

    def _history(self) -> list[str]:
        found = []
        if self.history_time:
            found.append(f"history counts in the order of {self.history_time} (--history-set time=none: in folds)")
        if self.sequence_time:
            found.append(f"sequences are in the order of {self.sequence_time} (`time COLUMN` in --sequence: another)")
        return found


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
        sources: dict[str, Rows] = {part: RecipeRows(reader, paths, columns) for part, paths in parts.items()}
        drop = () if schema else tuple(asked.drop)
        classes = _classes(asked, schema, label, partial(reader.rows, parts["train"], [label]))
    else:
        classes = _classes(asked, schema, label, partial(_labels, asked, parts["train"], label, bad))
        sources = _plain_sources(parts, schema, label, bad, classes, asked.separator)
        index = () if schema else formats.index_columns(parts["train"][0], bad)
        left_out = tuple(name for name in index if name not in (*asked.drop, label, weight))
        files = Files(parts, bad, left_out=left_out)
        drop = (*asked.drop, *left_out)
    time = None if recipe else _time(asked, given, sources["train"], (label, weight, *drop), parts)
    history = asked.history
    if time:
        split = _in_time(asked, split, time)
        history = _history_in_time(asked, split, time)
    sequences = _sequences(asked, split, history, time)
    files = replace(
        files,
        sequence_time=sequences[0].time if sequences and not asked.sequences[0].time else "",
        classes=classes,
        named_classes=bool(asked.positive),
        separator=asked.separator,
        history_time=history.time if history and asked.history and history != asked.history else "",
    )
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
        history=history,
        sequences=sequences,
        known=asked.known,
        recipe=files.recipe,
        threads=asked.threads,
        inputs=files.inputs,
        keep_rows=asked.keep_rows,
        classes=classes,
        position=asked.position,
        expire_after=tuple(asked.expire_after),
    )
    return plan, files


def _labels(asked: Asked, paths: list[Path], label: str, bad: BadRows) -> Iterator[pa.Table]:
    """The labels of the files; nothing where one lacks them, which is found when all columns are read.

    libsvm and libffm files, whose labels are 0 and 1 already, are not read for them.
    """
    if not asked.positive and any(formats.format_of(path) in sparse.KINDS for path in paths):
        return iter(())
    if any(label not in formats.column_names(path, bad=bad) for path in paths):
        return iter(())
    return formats.read(paths, [label], (), BadRows(bad.skip))


def _classes(asked: Asked, schema: Schema | None, label: str, rows: Rows) -> Classes:
    """The label's two values: the schema's own, or those that the training rows have."""
    if schema and (schema.positive or schema.recipe) and not asked.positive:
        return schema.classes
    return find_classes(label, (chunk[label] for chunk in rows()), asked.positive)


def _time(
    asked: Asked, given: Schema | None, rows: Rows, no_times: Collection[str], parts: Mapping[str, list[Path]]
) -> Times | None:
    """The column that says when rows came: one of the schema's times, or what the first rows look like."""
    apart = bool(asked.valid or asked.test or asked.split_group)
    open_split = not asked.split_by and not apart
    open_order = any(not field.time for field in asked.sequences)
    if not (open_split or (asked.history and asked.any_order and not apart) or open_order):
        return None
    if any(formats.format_of(path) in sparse.KINDS for path in parts["train"]):
        return None
    chunk = next(rows(), None)
    if chunk is None:
        return None
    sample = chunk.slice(0, LOOKED_AT)
    declared = {field.column for field in given.fields if field.is_time} if given else None
    names = [n for n in sample.column_names if n in declared] if declared is not None else sample.column_names
    able = [name for name in names if promising(sample[name].slice(0, GLANCED_AT))]
    wanted = [name for name in able if name not in no_times or name in asked.drop]
    later = formats.last_rows(parts["train"][-1], wanted) if wanted else None
    ends = {name: (sample[name], None if later is None else later[name]) for name in wanted}
    no_labels = np.empty(0, dtype=np.float32)
    return order_of([(name, Sample(first, no_labels, last)) for name, (first, last) in ends.items()])


def _in_time(asked: Asked, split: Split, time: Times) -> Split:
    """The split in the order of a time, where the user leaves it open."""
    taken = asked.split_by or asked.split_group or asked.valid or asked.test
    return split if taken else replace(split, by=time.column, time=time.format)


def _history_in_time(asked: Asked, split: Split, time: Times) -> HistorySettings | None:
    """The history that was asked for, in the order of the time that the rows are split by."""
    history = asked.history
    if history is None or history.time or not asked.any_order or split.by != time.column or time.complete < 1:
        return history
    return replace(history, time=time.column, parts=history.parts if history.parts != HISTORY_PARTS else ("rate",))


def _sequences(
    asked: Asked, split: Split, history: HistorySettings | None, time: Times | None
) -> tuple[PastField, ...]:
    """The sequences that are asked for, in the order of a time: the history's, what a column says, or the split's."""
    found = time.column if time and time.complete == 1 else ""
    order = (history.time if history else "") or found or split.by
    for field in asked.sequences:
        if not (field.time or order):
            way_out = "write `time COLUMN` behind it, or `time row` for the order of the rows"
            raise ConfigError(f"--sequence needs a time, found none for '{field.name}'; {way_out}")
    return tuple(field if field.time else replace(field, time=order) for field in asked.sequences)


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


def _plain_sources(
    parts: Mapping[str, list[Path]], schema: Schema | None, label: str, bad: BadRows, classes: Classes, separator: str
) -> dict[str, Rows]:
    every = _every(parts)
    for path in every:
        formats.column_names(path, bad=bad)
    numbers = schema.numbers if schema else formats.number_fields(every, bad=bad)
    must = tuple(schema.numbers) if schema else ()
    return {part: PlainRows(paths, numbers, bad, label, must, classes, separator) for part, paths in parts.items()}


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
    past = [*history.columns_needed, *(name for field in asked.sequences for name in field.columns)]
    return [n for n in dict.fromkeys([label, weight, *schema.columns, *past, by, *split.group]) if n]
