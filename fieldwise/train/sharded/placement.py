"""Where tables lie by default: whole on every worker as long as they fit."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from fieldwise.config import memory
from fieldwise.config.settings import Config
from fieldwise.nn.model import Model
from fieldwise.train import capacity, distributed


def tables_of(config: Config, make: Callable[[], Model], device: torch.device) -> str:
    """`replicated` or `sharded`; `auto` is `replicated` where the tables of all workers fit into their machine."""
    chosen = config.train.tables
    if chosen != "auto" or distributed.count() == 1:
        return "replicated" if chosen == "auto" else chosen
    fits = distributed.from_first(lambda: _needed(config, make, device) <= memory.total(device))
    return "replicated" if fits else "sharded"


def _needed(config: Config, make: Callable[[], Model], device: torch.device) -> int:
    """Bytes of the models and optimisers of all workers on one machine."""
    beside = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    numbers = capacity.counted(config, make).size
    return capacity.NUMBER * numbers * capacity.KEPT.get(config.train.optimizer, 3) * beside
