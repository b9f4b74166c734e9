"""Training steps: the plain one, and faster ones with the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.settings import Config
from fieldwise.nn.model import Model
from fieldwise.nn.taken import ways_of
from fieldwise.train import distributed
from fieldwise.train.sharded.sharded_model import Cut
from fieldwise.train.steps.captured import CapturedStep
from fieldwise.train.steps.plain import STAGES, Step, optimizer_of, tables
from fieldwise.train.steps.shallow import ShallowStep
from fieldwise.train.steps.sharded import ShardedStep
from fieldwise.train.steps.shared import SharedStep

__all__ = [
    "STAGES",
    "CapturedStep",
    "ShallowStep",
    "ShardedStep",
    "SharedStep",
    "Step",
    "make_step",
    "optimizer_of",
    "tables",
    "ways_taken",
]


def make_step(model: Model | Cut, config: Config, total: int) -> Step:
    """The fastest step for this model, its device and these settings, or the step of several workers."""
    if isinstance(model, Cut):
        return ShardedStep(model, config, total)
    return kind_of_step(model, config)(model, config, total)


def kind_of_step(model: Model, config: Config) -> type[Step]:
    """The class of that step, for a model whose tables are whole."""
    if distributed.count() > 1:
        return SharedStep
    kinds = [kind for kind in (ShallowStep, CapturedStep) if kind.takes(model, config)]
    return kinds[0] if kinds else Step


def ways_taken(model: Model, config: Config, ids: NDArray[np.int32]) -> dict[str, Any]:
    """The step that training takes, and the implementation of each part, for a batch of these ids."""
    kind, parts = kind_of_step(model, config), ways_of(model, ids, config.train.precision)
    if kind is ShallowStep:  # does not call the parts
        parts = [{key: value for key, value in row.items() if key != "training"} for row in parts if "scoring" in row]
    return {"step": kind.__name__, "device": next(model.parameters()).device.type, "rows": len(ids), "parts": parts}
