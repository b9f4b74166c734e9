"""Which way each part of a model takes, in training and in scoring, for a run's log and `fieldwise models --ways`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwise.nn.model import Model
from fieldwise.parts.ways import FORMULA, Taken, taken

# Enough for every way that needs many rows.
MOST_ROWS = 1000


def ways_of(model: Model, ids: NDArray[np.int32], precision: str = "float32") -> list[dict[str, Any]]:
    """For each part its path and kind, its ways in training and in scoring, and why not a faster one.

    The model computes the rows `ids` (n, C) twice. Its weights and running statistics and the state of the random
    numbers stay as they are.
    """
    device, was_training = next(model.parameters()).device, model.training
    rows = np.array(ids[:MOST_ROWS])
    given = torch.from_numpy(rows).to(device)
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            trained = taken(model.train(), lambda: model(given))
            scored = taken(model.eval(), lambda: model.logits(rows))
    finally:
        model.train(was_training)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
    return _joined(trained, scored)


def _joined(trained: list[Taken], scored: list[Taken]) -> list[dict[str, Any]]:
    """A row for each part, with keys `training` and `scoring` where it is used."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for when, ways in (("training", trained), ("scoring", scored)):
        for each in ways:
            row = found.setdefault((each.part, each.kind), {"part": each.part, "kind": each.kind, "against": {}})
            row[when] = each.way
            if each.way == FORMULA:
                row["against"] |= each.against
    return list(found.values())


def lines(ways: list[dict[str, Any]]) -> list[str]:
    """The same as text, a line for each part."""
    found = []
    for row in ways:
        passes = [f"{when} {row[when]}" for when in ("training", "scoring") if when in row]
        if row.get("training") == row.get("scoring"):
            passes = [row["training"]]
        against = "; ".join(f"{way}: {reason}" for way, reason in row["against"].items())
        where = f"{row['part'] or 'model'}, {row['kind']}"
        found.append(f"{where:48} {', '.join(passes)}" + (f" ({against})" if against else ""))
    return found
