"""Encoded rows -> logits, in batches: what training's evaluation and the predictor share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    import torch

SCORE_ROWS = 4096


class Saved(Protocol):
    """A model that can be written."""

    @property
    def file(self) -> str:
        """The name of its file in a bundle."""

    def save(self, path: Path) -> None: ...


class Scorer(Saved, Protocol):
    """The face that networks and trees share: all that evaluation, bundles and the predictor know of a model."""

    @property
    def size(self) -> int:
        """How many numbers it learnt: a network's parameters, the leaves of trees."""

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]: ...

    def to(self, device: Any) -> Any: ...

    def load(self, path: Path) -> None: ...


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu, cuda or auto, found '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but torch sees no GPU; take --device cpu")
    return torch.device(name)


def score(model: Scorer, ids: NDArray[np.int32], rows: int = SCORE_ROWS) -> NDArray[np.floating[Any]]:
    """Logits of all rows: ids (n, C) -> (n,)."""
    return in_batches(model.logits, ids, rows) if len(ids) else np.empty(0, dtype=np.float32)


def in_batches(
    logits: Callable[[NDArray[np.int32]], NDArray[np.floating[Any]]], ids: NDArray[np.int32], rows: int = SCORE_ROWS
) -> NDArray[np.floating[Any]]:
    """What a function of ids (n, C) gives for all rows, its last axis: (n,), or (K, n)."""
    return np.concatenate([logits(np.array(ids[first : first + rows])) for first in range(0, len(ids), rows)], axis=-1)
