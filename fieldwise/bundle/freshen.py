"""Updates the history of a bundle with labelled rows, without training: a new bundle with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from fieldwise.bundle import bundle
from fieldwise.bundle.bundle import Bundle
from fieldwise.config.errors import BundleError, DataError
from fieldwise.data.encode.later_rows import follow
from fieldwise.data.encode.prepare import read_labels


def update_history(
    source: Path,
    chunks: Iterator[pa.Table],
    out: Path,
    force: bool = False,
    progress: Callable[[str, int], None] = lambda step, rows: None,
) -> dict[str, Any]:
    """Counts labelled rows in the histories of a run or bundle; writes the new bundle to `out`.

    Later rows then get the history that `prepare` would give them after all these rows. All members of a blend are
    updated.
    """
    origin = bundle.load(source)
    models = [own for own in origin.members or (origin,) if own.own_encoder.counts_rows]
    if not models:
        way_out = "prepare with --history or --sequence and train to have one"
        raise BundleError(f"the model has no history to bring up to date; {way_out} ({source})")
    # Members may share an encoder, which must count a row once.
    encoders = dict.fromkeys(own.own_encoder for own in models)
    before = {own.path: own.own_encoder.end for own in models}
    rows = 0
    for chunk in chunks:
        label = origin.schema.label
        if label not in chunk.column_names:
            raise DataError(f"updating needs the label column '{label}', found: {', '.join(chunk.column_names)}")
        labels = read_labels(chunk[label], label, rows, classes=origin.schema.classes)
        for encoder in encoders:
            follow(encoder, chunk, labels, rows)
        rows += len(chunk)
        progress("counting", rows)
    if not rows:
        raise DataError("there are no rows to bring the history up to date with")
    bundle.rewrite(origin, out, force)
    return {"bundle": str(out), "rows": rows, "histories": [_facts(own, before[own.path]) for own in models]}


def _facts(own: Bundle, before: float) -> dict[str, Any]:
    history, pasts = own.own_encoder.history, own.own_encoder.pasts
    timed = bool(pasts) or (history is not None and bool(history.settings.time))
    sequences = {name: past.trail.used for past in pasts for name in past.names}
    return {
        "model": own.config.model,
        "keys": list(history.settings.keys) if history else [],
        "known": history.counts.used if history else 0,
        "sequences": sequences,
        "from": before if timed and math.isfinite(before) else None,
        "to": own.own_encoder.end if timed else None,
    }
