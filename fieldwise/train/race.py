"""What ends a run of a comparison before its own patience does: a time, or others that leave it nothing to add.

A model that is worse than others may still be good beside them; so a run is judged by what the blend gains, not by its
own loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldwise.bundle import calibration
from fieldwise.data.dataset import Part

# Where a finished run leaves the logits of its validation rows.
FILE = "valid_logits.npy"
# Twice the gain in log likelihood that one more weight must bring: chance brings 4 in one of twenty.
NOISE = 4.0
# A loss that falls may go on falling for this many evaluations at the pace of the last one.
AHEAD = 5
# A blend may be too cautious: what a member adds is not that it makes it bolder. And what it may add is asked for here,
# not what is believed.
_free = partial(calibration.stack, sum_sd=math.inf, weight_sd=1.0)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Race:
    """What a run competes with: the folders of other runs, and the moment (`time.monotonic`) when its time is up."""

    others: tuple[Path, ...] = ()
    until: float = math.inf

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.until


@dataclass(frozen=True)
class Rivals:
    """The blend of finished runs on validation rows: its logits (n,), and the loss of the best of them."""

    valid: Part
    blend: Floats
    best: float

    @classmethod
    def of(cls, folders: Sequence[Path], valid: Part) -> Self | None:
        """Those of these runs that have finished; None where none has."""
        found = [logits for folder in folders if (logits := read_logits(folder, valid.rows)) is not None]
        if not found:
            return None
        return cls(valid, blended(valid, found), min(loss_of(valid, blended(valid, [one])) for one in found))

    def leave_nothing(self, logits: NDArray[np.floating[Any]], fall: float) -> bool:
        """Whether a run with these logits (n,), whose loss fell by `fall` since the evaluation before, adds nothing to
        the blend and will not come up to the best of the others soon."""
        soon = loss_of(self.valid, logits) - AHEAD * max(fall, 0.0)
        return soon > self.best and gain(self.valid, self.blend, logits) < NOISE


def gain(valid: Part, blend: Floats, logits: NDArray[np.floating[Any]]) -> float:
    """Twice the log likelihood that a blend (n,) wins with one more member (n,); below NOISE it is chance."""
    both = np.stack([blend, np.asarray(logits, dtype=np.float64)])
    weights, shift = _free(valid.labels, both, valid.weights)
    return 2 * valid.rows * (loss_of(valid, blend) - loss_of(valid, weights @ both + shift))


def blended(valid: Part, logits: Sequence[NDArray[np.floating[Any]]]) -> Floats:
    """The logits (n,) of the blend of several models' (n,)."""
    stacked = np.stack(logits).astype(np.float64)
    weights, shift = _free(valid.labels, stacked, valid.weights)
    return np.asarray(weights @ stacked + shift)


def loss_of(valid: Part, logits: NDArray[np.floating[Any]]) -> float:
    return float(np.average(losses_of(valid, logits), weights=valid.weights))


def losses_of(valid: Part, logits: NDArray[np.floating[Any]]) -> Floats:
    """The log loss of each row."""
    x = np.asarray(logits, dtype=np.float64)
    return np.asarray(np.logaddexp(0, x) - np.asarray(valid.labels) * x)


def read_logits(run: Path, rows: int) -> NDArray[np.float32] | None:
    """The validation logits that a finished run left; None where there are none for as many rows."""
    file = run / FILE
    if not (run / "DONE").exists() or not file.is_file():
        return None
    found: NDArray[np.float32] = np.load(file, allow_pickle=False)
    return found if found.shape == (rows,) else None
