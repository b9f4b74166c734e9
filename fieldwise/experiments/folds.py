"""Where a validation part has few positives: close candidates are trained on further folds, and chosen by all of them.

A fold's runs are trained like those of the comparison, on data/foldN. What they say of their own validation rows is
evidence beside the comparison's own: for the choice, for the weights of a blend, and for its calibration.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import calibration
from fieldwise.config.files import whole_file
from fieldwise.config.progress import Watch
from fieldwise.data.dataset import Dataset, Part
from fieldwise.data.encode.folds import FOLDERS
from fieldwise.data.encode.on_demand import made, offered
from fieldwise.evaluation.metrics import losses
from fieldwise.experiments.jobs import Job
from fieldwise.train.blend import Evidence
from fieldwise.train.race import FILE as LOGITS
from fieldwise.train.race import Race, read_logits
from fieldwise.train.runs import base_rate

FOLDER, FILE = "folds", "evidence.npz"
# Candidates at most, and how many standard errors behind the first one still is: chance may have put it there.
MOST, CLOSE = 3, 2.0
Trainer = Callable[[Sequence[Job], int, Watch], Mapping[str, str]]


@dataclass(frozen=True)
class Folded:
    """The logits (K, n) of named candidates for rows that they have not seen: of the first part, then of each fold."""

    names: list[str]
    logits: NDArray[np.float64]
    labels: NDArray[np.uint8]
    weights: NDArray[np.float32] | None
    first: int
    stamp: str = ""
    trained: calibration.BaseRate | None = None

    def loss(self, name: str) -> float:
        """The log loss of a candidate over all rows, each calibrated by others."""
        own = self.logits[self.names.index(name)]

        def fitted(known: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
            weights = None if self.weights is None else self.weights[known]
            found = calibration.fit("platt", self.labels[known], own[known], weights, trained=self.trained)
            return found.probabilities(own[others])

        return calibration.cross_fitted(self.labels, fitted, self.weights)

    def beside(self, names: Sequence[str]) -> Evidence | None:
        """What the folds say of these runs, for a blend of them; nothing if one was not in the folds."""
        if not set(names) <= set(self.names):
            return None
        places, more = [self.names.index(name) for name in names], slice(self.first, None)
        weights = None if self.weights is None else self.weights[more]
        return Evidence(self.logits[places, more], self.labels[more], weights)

    def save(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        arrays: dict[str, Any] = {"names": np.array(self.names), "logits": self.logits, "labels": self.labels}
        weighted = {} if self.weights is None else {"weights": self.weights}
        trained = (self.trained.rate, self.trained.positives) if self.trained else ()
        arrays |= {"first": np.array(self.first), "stamp": np.array(self.stamp), "trained": np.array(trained)}
        arrays |= weighted
        with whole_file(file) as work, work.open("wb") as opened:
            np.savez(opened, **arrays)

    @classmethod
    def of(cls, out: Path) -> Folded | None:
        """What `gather` has left in the folder of a comparison."""
        file = out / FOLDER / FILE
        if not file.is_file():
            return None
        with np.load(file, allow_pickle=False) as found:
            weights = found.get("weights")
            names, first, stamp, rate = (found[name].tolist() for name in ("names", "first", "stamp", "trained"))
            trained = calibration.BaseRate(*rate) if rate else None
            return cls(names, found["logits"], found["labels"], weights, first, stamp, trained)


def gather(
    kept: Mapping[str, Sequence[Job]], data: Path, out: Path, train: Trainer, workers: int, watch: Watch
) -> Folded | None:
    """Trains the close candidates on the folds that `data` offers; leaves and returns what they say of held-out rows.

    None where the validation part says enough, or where no two candidates are close. What was trained for it is removed
    in the end: the rows are many times the file.
    """
    names = [name for name in FOLDERS if offered(data / name)]
    # Runs of older versions have left no logits.
    kept = {name: jobs for name, jobs in kept.items() if (jobs[0].out / LOGITS).is_file()}
    close = _close(kept) if names and len(kept) > 1 else []
    known, stamp = Folded.of(out), _stamp(data, [kept[name][0] for name in close])
    if known and known.stamp == stamp:
        return known
    (out / FOLDER / FILE).unlink(missing_ok=True)
    if len(close) < 2:
        return None
    jobs = {(name, fold): _job(kept[name][0], data, fold, out, watch) for fold in names for name in close}
    failures = train(list(jobs.values()), workers, watch)
    close = [name for name in close if name not in failures]
    if len(close) < 2:
        return None
    parts = [Dataset.open(folder).parts["valid"] for folder in (data, *(data / fold for fold in names))]
    runs = [[kept[name][0], *(jobs[name, fold] for fold in names)] for name in close]
    logits = np.stack([np.concatenate([_logits(job) for job in own]) for own in runs])
    weights = [part.weights for part in parts if part.weights is not None]
    folded = Folded(
        close,
        logits,
        np.concatenate([part.labels for part in parts]),
        np.concatenate(weights) if weights else None,
        parts[0].rows,
        stamp,
        base_rate(Dataset.open(data).parts["train"], 1.0),
    )
    folded.save(out / FOLDER / FILE)
    for own in (*(data / fold for fold in names), *(out / FOLDER / name for name in close)):
        shutil.rmtree(own, ignore_errors=True)
    return folded


def _stamp(data: Path, jobs: Sequence[Job]) -> str:
    """What the evidence of a comparison depends on: the rows, the candidates and their settings."""
    found = [Dataset.open(data).fingerprint]
    found += [f"{job.group} {(job.out / 'identity.json').read_text(encoding='utf-8')}" for job in jobs]
    return hashlib.blake2b("\n".join(found).encode(), digest_size=16).hexdigest()


def _job(job: Job, data: Path, fold: str, out: Path, watch: Watch) -> Job:
    """A run of the comparison once more, on a fold."""
    folder = made(data / fold / job.data.relative_to(data), watch.making)
    place = out / FOLDER / job.group / fold
    return replace(job, name=f"{job.group} {fold}", data=folder, out=place, race=Race())


def _close(kept: Mapping[str, Sequence[Job]]) -> list[str]:
    """The candidates that chance may have put behind the first one, those with the lowest loss first."""
    part = _valid(next(iter(kept.values()))[0])
    rows = {name: losses(part.labels, _calibrated(jobs[0])) for name, jobs in kept.items()}
    order = sorted(rows, key=lambda name: float(np.average(rows[name], weights=part.weights)))
    first = rows[order[0]]
    return [name for name in order if _behind(rows[name] - first, part) <= CLOSE][:MOST]


def _behind(differences: NDArray[np.float64], part: Part) -> float:
    """How many standard errors the mean of differences lies above 0."""
    mean = float(np.average(differences, weights=part.weights))
    spread = float(np.sqrt(np.average((differences - mean) ** 2, weights=part.weights) / len(differences)))
    return mean / spread if spread else 0.0


def _valid(job: Job) -> Part:
    return Dataset.open(job.data).parts["valid"]


def _calibrated(job: Job) -> NDArray[np.float64]:
    """The probabilities of a run's validation rows, with a slope and a shift that few of them do not move far."""
    part, logits = _valid(job), _logits(job)
    return calibration.fit("platt", part.labels, logits, part.weights).probabilities(logits)


def _logits(job: Job) -> NDArray[np.float64]:
    """The logits of a run for the validation rows of its folder, which it was not trained on."""
    found = read_logits(job.out, _valid(job).rows)
    assert found is not None  # a finished run has left them
    return np.asarray(found, dtype=np.float64)
