"""What the user asked -> a prepared folder, for the command line and AutoClassifier alike."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fieldwise.config.errors import OddCell
from fieldwise.data.encode.engine import Opened
from fieldwise.data.encode.plan import Plan
from fieldwise.data.encode.prepare import carry_out, check_shards
from fieldwise.data.encode.staged import Progress, quiet
from fieldwise.data.recipes.asked import Asked, plan_of


def prepare_asked(
    asked: Asked, out: Path, force: bool = False, progress: Progress = quiet, engine: Opened | None = None
) -> tuple[dict[str, Any], Plan]:
    """Writes the prepared folder `out`; returns its facts, notes on the files among them, and the plan."""
    plan, files = plan_of(asked)
    if engine:
        check_shards(plan)
    try:
        with engine() if engine else nullcontext() as works:
            facts = carry_out(plan, out, force, progress, works)
    except OddCell as odd:
        raise odd.at(files.locate(odd.column, odd.text)) from None
    facts["notes"] += files.notes()
    facts["skipped_rows"] = files.bad.facts()
    return facts, plan
