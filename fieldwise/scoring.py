"""Encoded rows -> logits, in batches: what training's evaluation and the predictor share."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwise.errors import ConfigError
from fieldwise.models import Model

SCORE_ROWS = 4096


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu, cuda or auto, found '{name}'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda was asked for, but torch sees no GPU; take --device cpu")
    return torch.device(name)


@torch.inference_mode()
def score(model: Model, ids: NDArray[np.int32], rows: int = SCORE_ROWS) -> NDArray[np.float32]:
    """Logits of all rows: ids (n, C) -> (n,), with dropout and batch statistics off."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    parts = [
        model(torch.from_numpy(np.array(ids[first : first + rows])).to(device)).float().cpu().numpy()
        for first in range(0, len(ids), rows)
    ]
    model.train(was_training)
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
