"""The usual models as a race, so that a comparison costs little: cheap ones first, and no more than what helps.

Every model trains once. One that the finished ones leave nothing to add is stopped (train/race.py). Those that are as
good as the best, or add to it, are chosen; and trees among them, which are cheap, get further seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.progress import Watch
from fieldwise.data.dataset import Part
from fieldwise.experiments.entrants import Entrant
from fieldwise.experiments.jobs import Job, run_all
from fieldwise.nn.tree_models import TREES
from fieldwise.train.race import NOISE, Race, blended, gain, losses_of, read_logits

# Runs of each of the chosen trees, or of the only one; above this many training rows one, as seeds differ less the more
# rows there are.
SEEDS, ALONE, MOST_ROWS = 2, 3, 100_000
Logits = Mapping[str, NDArray[np.floating[Any]]]


# What part of a given time the first runs may take, and these together with further seeds; the rest is for the refit.
FIRST_SHARE, MORE_SHARE = 0.6, 0.7
# A run again takes this much longer at most, with its evaluations and more rows; and seconds for tables and bundles.
AGAIN, ASIDE = 1.5, 5.0


@dataclass(frozen=True)
class Budget:
    """The seconds (wall clock) that a comparison may take, from when it was made."""

    seconds: float = math.inf
    began: float = field(default_factory=time.monotonic)

    def at(self, share: float) -> float:
        """The moment when that share of it is spent."""
        return self.began + share * self.seconds

    def allows(self, jobs: Sequence[Job]) -> bool:
        """Whether what is left is enough for these runs, by how long the same ones took before."""
        return time.monotonic() + ASIDE + AGAIN * sum(job.seconds for job in jobs) < self.at(1.0)


@dataclass(frozen=True)
class Outcome:
    """The jobs of a race that were asked for, the error of each model that failed, and the models worth blending."""

    jobs: list[Job]
    failures: dict[str, str]
    chosen: list[str]


def race(
    entrants: Sequence[Entrant],
    job_of: Callable[[Entrant, int], Job],
    valid: Part,
    rows: int,
    workers: int = 1,
    watch: Watch | None = None,
    budget: Budget | None = None,
) -> Outcome:
    """Trains all entrants once, each beside those before it, and the chosen trees SEEDS times (a single one of them
    ALONE times) if `rows`, those of the training part, are few."""
    budget, jobs = budget or Budget(), list[Job]()
    for entrant in entrants:
        others = tuple(other.out for other in jobs)
        jobs.append(replace(job_of(entrant, 0), race=Race(others, budget.at(FIRST_SHARE))))
    failures = run_all(jobs, workers, watch)
    found = {job.group: read_logits(job.out, valid.rows) for job in jobs}
    picked = chosen({name: logits for name, logits in found.items() if logits is not None}, valid)
    trees = [entrant for entrant in entrants if entrant.model in TREES and entrant.name in picked]
    until, seeds = Race(until=budget.at(MORE_SHARE)), (SEEDS if len(trees) > 1 else ALONE) if rows <= MOST_ROWS else 1
    more = [replace(job_of(entrant, seed), race=until) for seed in range(1, seeds) for entrant in trees]
    failures |= run_all(more, workers, watch) if more else {}
    return Outcome([*jobs, *more], failures, picked)


def chosen(logits: Logits, valid: Part) -> list[str]:
    """The models that belong together, from their validation logits (n,): those within a standard error of the best,
    and each that adds more than chance to the blend of these."""
    if not logits:
        return []
    losses = {name: losses_of(valid, blended(valid, [own])) for name, own in logits.items()}
    best = min(losses, key=lambda name: np.average(losses[name], weights=valid.weights))
    members = [name for name in logits if _level(losses[name] - losses[best], valid)]
    while rest := [name for name in logits if name not in members]:
        blend = blended(valid, [logits[name] for name in members])
        gains = {name: gain(valid, blend, logits[name]) for name in rest}
        most = max(rest, key=lambda name: gains[name])
        if gains[most] < NOISE:
            break
        members.append(most)
    return [name for name in logits if name in members]


def _level(behind: NDArray[np.float64], valid: Part) -> bool:
    """Whether losses (n,) beyond the best's are within a standard error of none."""
    weighted = behind if valid.weights is None else behind * (valid.weights / valid.weights.mean())
    return bool(weighted.mean() <= weighted.std() / np.sqrt(len(behind)))
