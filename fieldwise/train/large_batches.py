"""train.batch_scale: the settings of a batch s times as large, from those of the base batch.

CowClip's rule (Zheng et al., AAAI 2023; its clip is optim/row_clip.py): most ids are rare, so that they occur once in a
batch of either size and move as often and as far as before; so the rate of the tables stays. All other weights move s
times less often, along gradients with less noise, and have the rate of square-root scaling. L2 of the tables is s times
as strong, which makes up for the fewer steps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import TrainSettings

# A warm-up of so few steps is not cut further: with 6 steps to a rate of .016 a wide PIN answers a constant, with 12 it
# learns.
FEWEST = 12
# The settings that the rule sets, in the order in which a run names them.
RESOLVED = ("batch_size", "lr", "dense_lr", "l2", "l2_full", "row_clip", "row_clip_least", "warmup")


def scaled(settings: TrainSettings) -> TrainSettings:
    """The settings of s times the batch with batch_scale 1 again, so that a recipe made of them means the same.

    batch_size and warmup are known. The warm-up takes as many rows as before, but at least `FEWEST` steps if it did.

    >>> found = scaled(TrainSettings(1000, batch_scale=4, lr=1e-3, warmup=100))
    >>> found.batch_size, found.lr, found.dense_lr, found.l2, found.warmup, found.row_clip
    (4000, 0.001, 0.002, 0.012, 25, 1.0)
    """
    times = settings.batch_scale
    if times == 1:
        return settings
    if settings.optimizer != "adam":
        rule = "train.batch_scale follows a rule for train.optimizer=adam"
        raise ConfigError(f"{rule}, found {settings.optimizer}; set train.batch_size and train.lr instead")
    # A sum over the looked-up rows has s times as many of them.
    of_rows = times if settings.l2_reduction == "mean" else 1
    return replace(
        settings,
        batch_scale=1.0,
        batch_size=round(settings.batch_size * times),
        dense_lr=(settings.dense_lr or settings.lr) * math.sqrt(times),
        l2=settings.l2 * of_rows,
        l2_full=settings.l2_full * times,
        row_clip=settings.row_ratio,
        warmup=max(math.ceil(settings.warmup / times), min(settings.warmup, FEWEST)),
    )


def resolved(asked: TrainSettings, settings: TrainSettings) -> dict[str, Any]:
    """What a run logs and reports of it; nothing without a scale."""
    if asked.batch_scale == 1:
        return {}
    return {"batch_scale": {"scale": asked.batch_scale, **{name: getattr(settings, name) for name in RESOLVED}}}


def said(found: dict[str, Any]) -> str:
    """`resolved` in a line for people."""
    named = ", ".join(f"{name} {found[name]:g}" for name in RESOLVED)
    return f"train.batch_scale={found['scale']:g} makes {named}"
