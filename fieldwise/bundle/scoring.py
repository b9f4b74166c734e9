"""Encoded rows -> logits, in batches; training's evaluation, the predictor and the server share it."""

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

# Rows and ids of a batch: a network holds one or more vectors for each id.
SCORE_ROWS, SCORE_IDS = 4096, 4_000_000


class Scorer(Protocol):
    """A model that scores encoded rows: a network in torch or ONNX Runtime, trees, or a blend."""

    def logits(self, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        """ids (n, C) -> logits (n,)."""


def reads_ranks(model: Scorer) -> bool:
    """Whether a model reads the ranks behind the ids, as trees do; a blend hands them to its members."""
    return bool(getattr(model, "reads_ranks", False))


class Saved(Protocol):
    """A model that can be saved."""

    @property
    def file(self) -> str:
        """The name of its file in a bundle."""

    def save(self, path: Path) -> None: ...


class Trained(Scorer, Saved, Protocol):
    """The interface of torch networks, trees and blends that training and bundles use."""

    @property
    def size(self) -> int:
        """The number of learnt values: a network's parameters, the leaves of trees."""

    def to(self, device: Any) -> Any: ...

    def load(self, path: Path) -> None: ...


def device_of(name: str) -> torch.device:
    """The torch device of a name; `auto` is the GPU if there is one."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu, cuda or auto, found '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was given, but torch finds no GPU; use --device cpu")
    return torch.device(name)


def score(
    model: Scorer,
    ids: NDArray[np.int32] | torch.Tensor,
    rows: int = SCORE_ROWS,
    precision: str = "float32",
    columns: int | None = None,
) -> NDArray[np.floating[Any]]:
    """Logits of all rows: ids (n, C) -> (n,). A network multiplies matrices in that precision, as in training.

    `placed` may have moved the ids. The model reads their first `columns`, or all.
    """
    if not len(ids):
        return np.empty(0, dtype=np.float32)
    on_gpu = getattr(model, "on_gpu", False)
    if on_gpu and (len(ids) > rows or not isinstance(ids, np.ndarray)):
        from fieldwise.bundle.gpu_scores import scores

        return scores(model, ids[:, :columns], precision)  # type: ignore[arg-type]
    # An array, or an object that returns one for a slice of rows, such as JoinedIds.
    ids = cast("NDArray[np.int32]", ids)
    if len(ids) > rows and not on_gpu:
        # Batches reuse the arrays of the one before: PIN and NIFM, which write much, are up to twice as fast.
        keep_freed_memory()

    def logits(some: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
        return model.logits(np.ascontiguousarray(some[:, :columns]))

    if precision == "float32":
        return in_batches(logits, ids, rows)
    import torch

    with torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16):
        return in_batches(logits, ids, rows)


def placed(model: Scorer, ids: NDArray[np.int32]) -> NDArray[np.int32] | torch.Tensor:
    """Ids that are scored repeatedly: moved to the GPU if the model is there, else unchanged."""
    if not getattr(model, "on_gpu", False):
        return ids
    from fieldwise.bundle.gpu_scores import placed as on_gpu

    return on_gpu(model, ids)  # type: ignore[arg-type]


def in_batches(
    logits: Callable[[NDArray[np.int32]], NDArray[np.floating[Any]]], ids: NDArray[np.int32], rows: int = SCORE_ROWS
) -> NDArray[np.floating[Any]]:
    """A function of ids (n, C) applied in batches and joined along its last axis, (n,) or (K, n); wide rows make
    smaller batches."""
    rows = max(1, min(rows, SCORE_IDS // ids[:1].shape[1]))
    if len(ids) <= rows:
        return logits(np.array(ids[:]))
    return np.concatenate([logits(np.array(ids[first : first + rows])) for first in range(0, len(ids), rows)], axis=-1)
