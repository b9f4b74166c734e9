"""The same rows once more with other ones of them as validation rows, in folders inside of the prepared one.

Where the validation part has few positives, chance chooses among models. Further parts of the training rows take its
place, one in each folder; the rows that were the validation part are trained on there. The test rows are in none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldwise.config.files import whole_folder
from fieldwise.data.dataset import FACTS, Tally
from fieldwise.data.encode import kept
from fieldwise.data.encode.encode import JOURNAL, write_parts
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.kept import Kept
from fieldwise.data.encode.split import Split, at_random, by_group
from fieldwise.data.encode.split_staged import own_words
from fieldwise.data.encode.staged import LABEL, Progress, staged_chunks, staged_file, write_staged
from fieldwise.data.read.parallel import threads
from fieldwise.data.schema import Schema

# The folders, the classes' rows from which on a validation part says enough, and the rows that folds are worth their
# price for: a model is trained again for each.
FOLDERS = ("fold1", "fold2")
ENOUGH, MOST_ROWS = 300, 60_000


def needed(tally: Tally) -> int:
    """How many further folds the validation part of a prepared folder needs to tell models apart."""
    rows, positives = (counts.get("valid", 0) for counts in (tally.rows, tally.positives))
    rarer = min(positives, rows - positives)
    if not rarer or rarer >= ENOUGH or tally.rows["train"] > MOST_ROWS or tally.levels:
        return 0
    most = tally.rows["train"] // (2 * rows)
    return min(len(FOLDERS), most, math.ceil(ENOUGH / rarer) - 1)


def make_fold(name: str, data: Path, progress: Progress) -> None:
    """Makes the folder of this name from kept rows; it keeps them too, for rates of its own."""
    before, schema, known = Tally.of(data), Schema.load(data / "schema.toml"), Kept.of(data)
    with whole_folder(data / name, FACTS) as work:
        rows = work / kept.FOLDER
        tally = _divide(data, rows, _share(before), FOLDERS.index(name), known.group)
        encoder = fit_encoder(schema, rows / "train", progress, None, threads())
        write_parts(encoder, rows, work, tally, progress)
        (rows / JOURNAL).unlink()
        replace(known, makes=tuple(name for name in known.makes if name in kept.RATES)).save(work)


def _share(tally: Tally) -> float:
    """The share of the training rows that becomes a validation part as large as the first."""
    return tally.rows["valid"] / tally.rows["train"]


def _divide(data: Path, rows: Path, share: float, fold: int, group: tuple[str, ...]) -> Tally:
    """Writes the rows of a fold; the training rows are drawn as `prepare` draws parts, and each fold has its own."""
    counts = {part: [0, 0] for part in ("train", "valid")}
    for number, (table, parts) in enumerate(_drawn(data, share, fold, group)):
        for place, part in enumerate(counts):
            own = table.filter(pa.array(parts == place))
            (rows / part).mkdir(parents=True, exist_ok=True)
            if len(own):
                write_staged(staged_file(rows, part, number), own_words(own))
            counts[part][0] += len(own)
            counts[part][1] += int(own[LABEL].to_numpy().sum())
    return Tally({part: own[0] for part, own in counts.items()}, {part: own[1] for part, own in counts.items()})


def _drawn(data: Path, share: float, fold: int, group: tuple[str, ...]) -> Iterator[tuple[pa.Table, NDArray[np.bool_]]]:
    """The kept training and validation rows, and whether each is a validation row of this fold."""
    # The fold's rows are in the middle of three parts, behind those of the folds before it.
    split = Split((1 - (fold + 1) * share, share, fold * share), seed=len(FOLDERS), group=group)
    at = at_random(split)
    for table in staged_chunks(data / kept.FOLDER / "train"):
        labels = table[LABEL].to_numpy()
        parts = by_group(split, table) if group else at(labels)
        yield table, parts == 1
    for table in staged_chunks(data / kept.FOLDER / "valid"):
        yield table, np.zeros(len(table), dtype=bool)
