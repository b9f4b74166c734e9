"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.optim.ftrl import FTRL
from fieldwise.optim.rows import check

SCHEDULES = ("constant", "step", "cosine")


def learning_rate(
    base: float,
    step: int,
    total_steps: int,
    schedule: str = "constant",
    warmup: int = 0,
    decay: float = 0.1,
    drops: int = 2,
) -> float:
    """The rate of step 0, 1, ... total_steps - 1; later steps keep the last.

    The first `warmup` steps rise in equal parts to base. Then `constant` stays there, `step` multiplies by
    decay at `drops` equally spaced moments, and `cosine` falls along half a wave to decay * base.

    >>> [learning_rate(1.0, step, 9, "step") for step in (0, 2, 3, 6, 8)]
    [1.0, 1.0, 0.1, 0.01..., 0.01...]
    >>> [learning_rate(1.0, step, 9, warmup=4) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if schedule not in SCHEDULES:
        raise ConfigError(unknown("schedule", schedule, SCHEDULES))
    check(warmup >= 0, "warmup must not be negative", warmup)
    check(0 <= decay <= 1, "decay must be in [0, 1]", decay)
    check(drops >= 0, "drops must not be negative", drops)
    if step < warmup:
        return base * (step + 1) / warmup
    since, left = step - warmup, max(total_steps - warmup, 1)
    if schedule == "step":
        return base * decay ** min(since * (drops + 1) // left, drops)
    if schedule == "cosine":
        return base * (decay + (1 - decay) * (1 + math.cos(math.pi * min(since / left, 1))) / 2)
    return base


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Give all groups this rate, or `times` of it where a group says so. FTRL's cannot change."""
    for group in optimizer.param_groups:
        own = lr * group.get("times", 1.0)
        if isinstance(optimizer, FTRL) and group["lr"] != own:
            rule = "ftrl needs the constant schedule without warmup: its weights are a function of its rate"
            raise ConfigError(f"{rule} {group['lr']}, found {own}")
        group["lr"] = own
