"""The same rows once more with rates of their categories and finer numbers, in folders inside of the prepared one.

Trees overfit on ids of many values, and do well on what the values' rates say. Networks of products have the ids
themselves, and grow with the square of the fields: they stay with the plain folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fieldwise.data.dataset import write_facts
from fieldwise.data.encode.encode import Before, encode_parts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.leaks import Leak
from fieldwise.data.encode.timeline import tell
from fieldwise.data.history.history import History
from fieldwise.data.kinds.kind import BY_TEXT, Code
from fieldwise.data.schema import AUTO, HistorySettings, Schema

# The folders, and in how many folds each counts: rates of the other folds know more, those of a random order give away
# nothing of a row's own label. Which of them trees do better on depends on the data.
FOLDER, ORDER = "rates", "order"
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


@dataclass(frozen=True)
class Counted:
    """The rows of each part, and the positives among them."""

    rows: dict[str, int]
    positives: dict[str, int]


def too_wide(rows: int, fields: int) -> str:
    """Why this many fields and training rows have no rates; nothing where they have."""
    if rows * fields <= MOST_CELLS:
        return ""
    found = f"found {rows:,} training rows x {fields:,} fields"
    return f"the folders rates, order and refit are left out: they take {MOST_CELLS:,} cells at most, {found}"


def usual_history(schema: Schema, group: tuple[str, ...] = (), folds: int = FOLDS[FOLDER]) -> HistorySettings:
    """Rates of each category, and of each pair of them where they are few, out of fold; rows of a group in one fold."""
    plain = [field.name for field in schema.fields if field.history_key == BY_TEXT]
    names = [name for name in plain if "*" not in name and name.partition(":")[0] != AUTO]
    pairs = itertools.combinations(names, 2) if len(names) <= MOST_CROSSED else ()
    keys = (*names, *("*".join(pair) for pair in pairs))
    return HistorySettings(
        keys, folds=folds, strength=STRENGTH, parts=("rate",), interpolate=STEPS, group=group, most_keys=MOST_KEYS
    )


def write_rates(
    encoder: Encoder,
    stage: Path,
    folder: Path,
    counted: Counted,
    leak: Leak | None,
    progress: Callable[[str, int], None],
) -> int:
    """Writes the folders from staged rows, and returns how many keys have a rate; without a category there are none.

    Where rows seem to come from one event, they are in one fold, so that no row sees what gives its label away.
    """
    group = leak.alike_in if leak else ()
    keys = usual_history(encoder.schema, group).keys
    codes = _with_finer_numbers(encoder, stage / "train", progress) if keys else []
    fields = tuple(code.field for code in codes)
    rows: Mapping[str, int] = counted.rows
    before = Before(encoder, folder)
    for name, folds in FOLDS.items() if keys else ():
        history = usual_history(encoder.schema, group, folds)
        inner = Encoder(replace(encoder.schema, fields=fields, history=history), codes, History(history))
        tell(inner, stage, rows, progress)
        own = folder / name
        own.mkdir(exist_ok=True)
        (own / "schema.toml").write_text(inner.schema.to_toml(), encoding="utf-8")
        inner.save(own / "encoder")
        digest = encode_parts(inner, stage, own, rows, progress, f"{name}.jsonl", before)
        write_facts(own, inner.names, inner.layout, counted.rows, counted.positives, 1.0, digest)
        before = Before(inner, own)
    return len(keys)


def _with_finer_numbers(encoder: Encoder, staged: Path, progress: Callable[[str, int], None]) -> Sequence[Code]:
    """The encoder's codes, those of numbers as their places between a few buckets instead of many hard ones."""
    fields = [(code.field, code.field.finer(BUCKETS, NUMBER_STEPS)) for code in encoder.codes]
    finer = tuple(new for old, new in fields if new != old)
    if not finer:
        return encoder.codes
    fitted = fit_encoder(replace(encoder.schema, fields=finer), staged, progress, None, 1).codes
    found = {code.field.name: code for code in fitted}
    return [found.get(code.field.name, code) for code in encoder.codes]
