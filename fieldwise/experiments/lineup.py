"""The settings of a comparison that the user leaves open, for the command line and AutoClassifier alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldwise.experiments import SEEDS
from fieldwise.experiments.compare import members_named
from fieldwise.experiments.entrants import Entrant, entrants


@dataclass(frozen=True)
class Lineup:
    """Who is compared, who of them is blended, runs of each (None: they race), and notes on who is left out."""

    entrants: Sequence[Entrant]
    members: Sequence[str]
    seeds: int | None
    notes: Sequence[str]


def lineup(data: Path, models: str = "", blend: str = "", seeds: int | None = None) -> Lineup:
    """The models that were named, and the blend of those named for it; without names the usual models, which race
    unless there is a number of seeds, and the blend of all; but no blend of models that were named."""
    found, notes = entrants(models, data)
    blended = blend or ("none" if models else "all")
    members = members_named("" if blended == "none" else blended, [entrant.name for entrant in found])
    return Lineup(found, members, SEEDS if seeds is None and models else seeds, notes)
