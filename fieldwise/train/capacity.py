"""Whether a network fits into memory, computed from its sizes before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fieldwise.config import memory
from fieldwise.config.errors import TooLarge
from fieldwise.config.settings import Config
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Embedding
from fieldwise.nn.model import Branch, Model
from fieldwise.nn.shallow_scores import is_shallow
from fieldwise.nn.shallow_scores import tables_of as tables

# Numbers that training keeps for each weight, including the weight.
KEPT = {"adam": 3, "ftrl": 3, "adagrad": 2, "sgd": 2}
NUMBER = 4  # bytes of a float32
# The settings that make each part of the need smaller.
SMALLER = {
    "tables": ("model.dim", "model.buckets"),
    "weights": (
        *("model.hidden", "model.subnet", "model.channels", "model.attention", "model.dim"),
        *("model.members", "model.blocks", "model.maps"),
    ),
    "batch": (
        *("train.batch_size", "model.dim", "model.subnet", "model.hidden"),
        *("model.members", "model.blocks", "model.maps"),
    ),
}
# From this many fields on, their pairs take most of the memory.
MANY_FIELDS = 200


@dataclass(frozen=True)
class Need:
    """What training needs at least: the number of weights, and the bytes of tables, of other weights (both with what
    the optimiser and an average keep) and of one batch."""

    learnt: int
    tables: int
    weights: int
    batch: int

    @property
    def bytes(self) -> int:
        return self.tables + self.weights + self.batch

    @property
    def largest(self) -> str:
        """Which part takes the most."""
        return max(("tables", "weights", "batch"), key=lambda part: int(getattr(self, part)))


def need(config: Config, make: Callable[[], Model], rows: int, scored: int = 0) -> Need:
    """What the model that `make` builds needs with batches of `rows` rows, and `scored` rows in an evaluation."""
    model = counted(config, make)
    in_tables = sum(table.weight.numel() for table in tables(model))
    kept = NUMBER * (KEPT.get(config.train.optimizer, 3) + (config.train.average > 0))
    saved = NUMBER // 2 if config.train.weights_precision == "bf16" else 0
    # Weights outside of the tables have gradients of their own size.
    others = (model.size - in_tables) * (kept + NUMBER)
    each = NUMBER * _numbers_of_a_row(model)
    # The compiled steps of LR, FM and FFM allocate for half a batch, and nothing to score.
    batch = rows // 2 * each if is_shallow(model) else max(rows, scored) * each
    return Need(model.size, in_tables * (kept - saved), others, batch)


def counted(config: Config, make: Callable[[], Model]) -> Model:
    """The model without memory; refuses sizes that overflow."""
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        way_out = f"lower {_settings(config, SMALLER['weights'])}"
        raise TooLarge(f"{config.model} would have more weights than can be counted; {way_out}") from None


def check(config: Config, found: Need, fields: int, device: torch.device, cut: bool = False) -> None:
    """Refuses what does not fit into the device's free memory; with `cut`, each worker has a part of the tables."""
    workers, beside = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    here = 1 if device.type == "cuda" else beside
    whole = found.bytes - found.tables
    needed = here * whole + found.tables * here // (workers if cut else 1)
    free = memory.available(device)
    if needed <= free:
        return
    place = "the GPU" if device.type == "cuda" else "this machine"
    said = f"{config.model} has {found.learnt:,} parameters over {fields:,} fields; training it takes {_shown(needed)}"
    parts = f"tables {_shown(found.tables)}, other weights {_shown(found.weights)}, a batch {_shown(found.batch)}"
    fewer = ", or prepare fewer fields" if fields > MANY_FIELDS else ""
    way_out = f"lower {_settings(config, SMALLER[found.largest])}{fewer}"
    raise TooLarge(f"{said} of memory at least ({parts}), {place} has {_shown(free)} free; {way_out}")


def _numbers_of_a_row(model: Model) -> int:
    """Numbers that a step holds for each row of its batch: looked-up vectors, features, the layers of DNNs."""
    numbers = 0
    if isinstance(model.embedding, Embedding):
        numbers += model.embedding.dim * len(model.embedding.dims)
    elif isinstance(model.embedding, PairTable):
        numbers += len(model.embedding.first)
    for branch in model.branches:
        assert isinstance(branch, Branch)
        numbers += branch.interaction.numbers
        units = sum(part.out_features for part in branch.classifier.modules() if isinstance(part, nn.Linear))
        members = getattr(branch.classifier, "members", 1)
        # Each member has features of its own.
        numbers += members * (units + (branch.interaction.width if members > 1 else 0))
    return numbers


def _settings(config: Config, names: tuple[str, ...]) -> str:
    """The settings among `names` that the model has, with their values, the largest first."""
    known: dict[str, Any] = {f"model.{name}": value for name, value in config.options.items()}
    known["train.batch_size"] = config.train.batch_size
    larger = [name for name in names if name in known and _most(known[name]) > 1]
    found = sorted(larger, key=lambda name: -_most(known[name]))
    return " or ".join(f"{name} ({_plain(known[name])})" for name in found)


def _most(value: Any) -> Any:
    return max(value, default=0) if isinstance(value, tuple) else value


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shown(count: int) -> str:
    """Bytes in readable units.

    >>> _shown(12_345), _shown(2_500_000_000), _shown(4_212_000_000_000_000)
    ('under 1 MB', '2.5 GB', '4,212 TB')
    """
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:,.0f} {unit}" if count >= 100 * size else f"{count / size:.2g} {unit}"
    return "under 1 MB"
