"""Encoded rows -> logits, in batches: what training's evaluation, the predictor and the server share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fieldwise.config.errors import ConfigError
from fieldwise.config.memory import keep_freed_memory

if TYPE_CHECKING:
    import torch

# Rows of a batch, and ids: a network holds a vector, or several, for each of them.
SCORE_ROWS, SCORE_IDS = 4096, 4_000_000


class Scorer(Protocol):
    """Whatever scores encoded rows: a network of torch or of ONNX Runtime, trees, a blend of any of them."""

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        """ids (n, C) -> logits (n,)."""


class Saved(Protocol):
    """A model that can be written."""

    @property
    def file(self) -> str:
        """The name of its file in a bundle."""

    def save(self, path: Path) -> None: ...


class Trained(Scorer, Saved, Protocol):
    """The face that networks of torch, trees and blends share: all that training and bundles know of a model."""

    @property
    def size(self) -> int:
        """How many numbers it learnt: a network's parameters, the leaves of trees."""

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


def score(
    model: Scorer, ids: NDArray[np.int32] | torch.Tensor, rows: int = SCORE_ROWS, precision: str = "float32"
) -> NDArray[np.floating[Any]]:
    """Logits of all rows: ids (n, C) -> (n,). A network's matrix products are of that precision, as in training.

    Ids may be what `placed` gave for them.
    """
    if not len(ids):
        return np.empty(0, dtype=np.float32)
    on_gpu = getattr(model, "on_gpu", False)
    if on_gpu and (len(ids) > rows or not isinstance(ids, np.ndarray)):
        from fieldwise.bundle.gpu_scores import scores

        return scores(model, ids, precision)  # type: ignore[arg-type]
    # An array, or what gives one for a slice of rows, as the ids of a blend do.
    ids = cast("NDArray[np.int32]", ids)
    if len(ids) > rows and not on_gpu:
        # The arrays of one batch serve the next: PIN and NIFM, with much to write, are up to twice as fast.
        keep_freed_memory()
    if precision == "float32":
        return in_batches(model.logits, ids, rows)
    import torch

    with torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16):
        return in_batches(model.logits, ids, rows)


def placed(model: Scorer, ids: NDArray[np.int32]) -> NDArray[np.int32] | torch.Tensor:
    """Ids to be scored often, brought to where the model is: they stay as they are unless that is a GPU."""
    if not getattr(model, "on_gpu", False):
        return ids
    from fieldwise.bundle.gpu_scores import placed as on_gpu

    return on_gpu(model, ids)  # type: ignore[arg-type]


def in_batches(
    logits: Callable[[NDArray[np.int32]], NDArray[np.floating[Any]]], ids: NDArray[np.int32], rows: int = SCORE_ROWS
) -> NDArray[np.floating[Any]]:
    """What a function of ids (n, C) gives for all rows, its last axis: (n,) or (K, n); of wide rows few at a time."""
    rows = max(1, min(rows, SCORE_IDS // ids[:1].shape[1]))
    if len(ids) <= rows:
        return logits(np.array(ids[:]))
    return np.concatenate([logits(np.array(ids[first : first + rows])) for first in range(0, len(ids), rows)], axis=-1)
