"""The staged rows that a prepared folder keeps, for the folders inside of it that are made when they are asked for.

Ids do not say enough for those: rare values share one, numbers share a bucket.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fieldwise.config.files import linked
from fieldwise.data.dataset import PARTS
from fieldwise.data.encode.staged import LABEL, WEIGHT, read_staged, staged_files, staged_schema, write_staged

FOLDER, FACTS = "rows", "kept.json"
# The folders with rates, of which those made of kept rows may have their own.
RATES = ("rates", "order")


@dataclass(frozen=True)
class Kept:
    """What is made of kept rows: the names of the folders, the columns that rows of one event are alike in, and those
    whose values were split as a whole."""

    makes: tuple[str, ...]
    alike_in: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Path) -> Kept:
        """What a prepared folder says of its kept rows; where there are none, nothing is made of them."""
        file = data / FOLDER / FACTS
        facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"makes": []}
        return cls(**{name: tuple(values) for name, values in facts.items()})

    def save(self, data: Path) -> None:
        (data / FOLDER / FACTS).write_text(json.dumps(asdict(self)), encoding="utf-8")


def keep_rows(stage: Path, data: Path, fields: Collection[str], kept: Kept) -> None:
    """Moves staged rows into a prepared folder, without the columns that became no field."""
    shutil.rmtree(data / FOLDER, ignore_errors=True)
    wanted = {*fields, LABEL, WEIGHT}
    # The chunks are counted anew, so that it does not matter in which shards they were staged.
    chunks = sorted({file.name for part in PARTS for file in staged_files(stage / part)})
    names_of = {name: f"{number:08d}.parquet" for number, name in enumerate(chunks)}
    for part in PARTS:
        (data / FOLDER / part).mkdir(parents=True)
        files = staged_files(stage / part)
        names = staged_schema(stage / part).names if files else []
        own = [name for name in names if name in wanted]
        for file in files:
            _move(file, data / FOLDER / part / names_of[file.name], own if len(own) < len(names) else None)
    kept.save(data)


def link_rows(data: Path, stage: Path, parts: Mapping[str, Sequence[str]]) -> None:
    """The kept rows once more under `stage`, each part of several ones in the order of the chunks that they came in."""
    for part, sources in parts.items():
        (stage / part).mkdir(parents=True)
        for place, source in enumerate(sources):
            for file in staged_files(data / FOLDER / source):
                linked(file, stage / part / f"{file.stem}-{place}.parquet")


def _move(file: Path, target: Path, columns: Sequence[str] | None) -> None:
    """Moves a file, or writes it anew with some of its columns."""
    if columns is None:
        os.replace(file, target)
    else:
        write_staged(target, read_staged(file, columns))
