"""The same rows once more with rates of their categories and finer numbers, in folders inside of the prepared one.

Trees overfit on ids of many values, and do well on what the values' rates say. Networks of products have the ids
themselves, and grow with the square of the fields: they stay with the plain folder. Without categories, finer
numbers alone are worth a folder.
"""

from __future__ import annotations

import filecmp
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fieldwise.config.files import linked, whole_folder
from fieldwise.data.dataset import FACTS, Tally, hide_of, is_prepared
from fieldwise.data.encode.encode import Before, write_parts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.kept import RATES, Kept, link_rows
from fieldwise.data.encode.staged import Progress
from fieldwise.data.encode.timeline import write_history
from fieldwise.data.history.history import History
from fieldwise.data.kinds.kind import BY_TEXT, Code, Field
from fieldwise.data.schema import AUTO, HistorySettings, Schema

# The folders, and in how many folds each counts: rates of the other folds know more, those of a random order give away
# nothing of a row's own label. Which of them trees do better on depends on the data.
FOLDER, ORDER = RATES
FOLDS = {FOLDER: 10, ORDER: 0}
# Rows above which the ids of a value have enough rows of their own, and rates would cost much memory; and cells, above
# which they would cost much disk.
MOST_ROWS, MOST_CELLS = 1_000_000, 400_000_000
# Up to this many categorical fields are crossed by twos; with more, none is.
MOST_CROSSED = 12
# Chosen on validation rows (docs/data.md): of the rates, and of numbers whose buckets the schema does not set.
STRENGTH, STEPS = 3.0, 4
# Bounds the memory to about half a gigabyte.
MOST_KEYS = 4_000_000
BUCKETS, NUMBER_STEPS = 16, 8


def too_wide(rows: int, fields: int) -> str:
    """Why this many fields and training rows have no rates; nothing where they have."""
    if rows * fields <= MOST_CELLS:
        return ""
    found = f"found {rows:,} training rows x {fields:,} fields"
    return f"there will be no folders rates, order and refit: they take {MOST_CELLS:,} cells at most, {found}"


def usual_history(schema: Schema, group: tuple[str, ...] = (), folds: int = FOLDS[FOLDER]) -> HistorySettings:
    """Rates of each category, and of each pair of them where they are few, out of fold; rows of a group in one fold."""
    plain = [field.name for field in schema.fields if field.history_key == BY_TEXT and not field.role]
    names = [name for name in plain if "*" not in name and name.partition(":")[0] != AUTO]
    pairs = itertools.combinations(names, 2) if len(names) <= MOST_CROSSED else ()
    keys = (*names, *("*".join(pair) for pair in pairs))
    return HistorySettings(
        keys, folds=folds, strength=STRENGTH, parts=("rate",), interpolate=STEPS, group=group, most_keys=MOST_KEYS
    )


def worth(schema: Schema) -> tuple[str, ...]:
    """The folders that hold more than the prepared one: without categories, finer numbers alone."""
    if usual_history(schema).keys:
        return tuple(FOLDS)
    return (FOLDER,) if any(field != _finer(field) for field in schema.fields) else ()


def make_rates(name: str, data: Path, progress: Progress, like: Path | None = None) -> None:
    """Makes the folder of this name from kept rows; what was encoded for `data`, or for the other, is taken from there.

    Where rows seem to come from one event, they are in one fold, so that no row sees what gives its label away. What
    training hides is as in the folder `like`, or as the rows themselves say.
    """
    base = next((data / other for other in FOLDS if is_prepared(data / other)), data)
    schema = replace(Schema.load(base / "schema.toml"), history=HistorySettings())
    encoder = Encoder.load(base / "encoder", schema, lifetimes=True)
    history = usual_history(schema, Kept.of(data).alike_in, FOLDS[name])
    tally = Tally.of(data)
    with whole_folder(data / name, FACTS) as work:
        stage = work / "stage"
        link_rows(data, stage, {part: [part] for part in tally.rows})
        codes = _with_finer_numbers(encoder, stage / "train", progress)
        fields = tuple(code.field for code in codes)
        inner = Encoder(replace(schema, fields=fields, history=history), codes)
        inner.lifetimes = encoder.lifetimes
        if history.keys:
            inner.history = History(history)
            write_history(inner, stage, tally.rows, progress)
        hide = None if like is None else hide_of(like)
        write_parts(inner, stage, work, tally, progress, Before(encoder, base), hide=hide)
        shutil.rmtree(stage)
        _share(work / "encoder", base / "encoder")


def _share(folder: Path, other: Path) -> None:
    """Files that are the same in two folders become one: what all training rows say does not depend on folds."""
    for file in folder.iterdir():
        if (other / file.name).is_file() and filecmp.cmp(file, other / file.name, shallow=False):
            file.unlink()
            linked(other / file.name, file)


def _with_finer_numbers(encoder: Encoder, staged: Path, progress: Progress) -> Sequence[Code]:
    """The encoder's codes, those of numbers as their places between a few buckets instead of many hard ones."""
    finer = tuple(_finer(code.field) for code in encoder.codes if _finer(code.field) != code.field)
    if not finer:
        return encoder.codes
    fitted = fit_encoder(replace(encoder.schema, fields=finer), staged, progress, None, 1).codes
    found = {code.field.name: code for code in fitted}
    return [found.get(code.field.name, code) for code in encoder.codes]


def _finer(field: Field) -> Field:
    return field.finer(BUCKETS, NUMBER_STEPS)
