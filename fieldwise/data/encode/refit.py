"""The same rows once more with those of the test part among the training rows, in a folder inside of the prepared one.

Who has chosen a model by validation rows, and measured it on test rows, trains it again on all rows that are honest to
use. Vocabularies, thresholds and rates are those of the larger training part; the validation rows stay out of it.
Where the rows are in the order of time, these lie between older and newer training rows, and know too well which values
the next rows have: how many are new, and so are hidden, is what the first folder says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fieldwise.config.files import whole_folder
from fieldwise.data.dataset import FACTS, Tally, hide_of
from fieldwise.data.encode import kept
from fieldwise.data.encode.encode import JOURNAL, write_parts
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fit import fit_encoder
from fieldwise.data.encode.kept import Kept, link_rows
from fieldwise.data.encode.lifetimes import lifetimes_at
from fieldwise.data.encode.staged import Progress, staged_schema
from fieldwise.data.read.parallel import threads
from fieldwise.data.schema import Schema

FOLDER = "refit"
# What becomes of the parts.
PARTS = {"train": ("train", "test"), "valid": ("valid",)}


def joins(stage: Path, rows: Tally) -> bool:
    """Whether staged rows have parts to join."""
    whole = all(part in rows.rows for part in ("train", "valid", "test"))
    return whole and staged_schema(stage / "train") == staged_schema(stage / "test")


def make_refit(data: Path, progress: Progress) -> None:
    """Makes the folder from kept rows; it keeps them too, for rates of its own."""
    before, schema = Tally.of(data), Schema.load(data / "schema.toml")
    facts = (before.rows, before.positives)
    counts = [{part: sum(one[s] for s in sources) for part, sources in PARTS.items()} for one in facts]
    part_of = {source: part for part, sources in PARTS.items() for source in sources}
    tally = Tally(counts[0], counts[1], tuple((part_of[part], rows, own) for part, rows, own in before.levels))
    with whole_folder(data / FOLDER, FACTS) as work:
        rows = work / kept.FOLDER
        link_rows(data, rows, PARTS)
        first = Encoder.load(data / "encoder", schema, lifetimes=True).lifetimes
        lifetimes = lifetimes_at(rows / "train", schema, None, first.expiry.said if first else ())
        encoder = fit_encoder(schema, rows / "train", progress, None, threads(), lifetimes)
        write_parts(encoder, rows, work, tally, progress, hide=hide_of(data))
        (rows / JOURNAL).unlink()
        known = Kept.of(data)
        replace(known, makes=tuple(name for name in known.makes if name in kept.RATES)).save(work)
