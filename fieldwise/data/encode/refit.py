"""The same rows once more with those of the test part among the training rows, in a folder inside of the prepared one.

Who has chosen a model by validation rows, and measured it on test rows, trains it again on all rows that are honest to
use. Vocabularies, thresholds and rates are those of the larger training part; the validation rows stay out of it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fieldwise.data.dataset import write_facts
from fieldwise.data.encode.encode import encode_parts
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.leaks import Leak
from fieldwise.data.encode.rates import Counted, write_rates
from fieldwise.data.encode.stage import Progress
from fieldwise.data.encode.staged import staged_files, staged_schema
from fieldwise.data.read.parallel import threads
from fieldwise.data.schema import Schema

FOLDER = "refit"
# What becomes of the staged parts.
PARTS = {"train": ("train", "test"), "valid": ("valid",)}


def write_refit(
    schema: Schema, stage: Path, folder: Path, counted: Counted, leak: Leak | None, progress: Progress
) -> bool:
    """Writes the folder from staged rows, its own rates inside; returns False where there are no parts to join."""
    whole = all(part in counted.rows for part in ("train", "valid", "test"))
    if not whole or staged_schema(stage / "train") != staged_schema(stage / "test"):
        return False
    joined = stage / FOLDER
    for part, sources in PARTS.items():
        _join([stage / source for source in sources], joined / part)
    facts = (counted.rows, counted.positives)
    rows, positives = ({part: sum(one[s] for s in sources) for part, sources in PARTS.items()} for one in facts)
    encoder = fit_encoder(schema, joined / "train", progress, None, threads())
    own = folder / FOLDER
    own.mkdir(exist_ok=True)
    (own / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    encoder.save(own / "encoder")
    digest = encode_parts(encoder, joined, own, rows, progress)
    write_rates(encoder, joined, own, Counted(rows, positives), leak, progress)
    write_facts(own, encoder.names, encoder.layout, rows, positives, 1.0, digest)
    return True


def _join(sources: list[Path], target: Path) -> None:
    """The files of several staged parts as one part, in the order of the chunks that their rows came in."""
    target.mkdir(parents=True, exist_ok=True)
    for place, source in enumerate(sources):
        for file in staged_files(source):
            _link(file, target / f"{file.stem}-{place}.parquet")


def _link(file: Path, target: Path) -> None:
    """The same file by another name, or a copy where the disk has no second names."""
    target.unlink(missing_ok=True)
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
