"""Steps of training: the plain one, and faster ones that equal it."""

from __future__ import annotations

from fieldwise.config.settings import Config
from fieldwise.nn.model import Model
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
]


def make_step(model: Model | Cut, config: Config, total: int) -> Step:
    """The fastest step there is for this model, its device and these settings, or that of several workers."""
    if isinstance(model, Cut):
        return ShardedStep(model, config, total)
    if distributed.count() > 1:
        return SharedStep(model, config, total)
    kinds = [kind for kind in (ShallowStep, CapturedStep) if kind.takes(model, config)]
    return kinds[0](model, config, total) if kinds else Step(model, config, total)
