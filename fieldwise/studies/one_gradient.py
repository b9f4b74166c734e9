"""One gradient through our own Adam: how it moves a weight that is first touched at step t."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwise.optim.adam import Adam

Floats = NDArray[np.float64]
STEPS = (1, 100, 10_000)


def moved(gradients: Floats, t: int, eps: float, mode: str = "textbook", idle: int = 0) -> Floats:
    """The steps (idle + 1, n), in units of the learning rate, of weights that get their first gradient at step t.

    `idle` steps with zero gradients follow. Adam has counted t - 1 steps before, without a gradient of these weights.
    """
    weights = torch.zeros(len(gradients), dtype=torch.float64, requires_grad=True)
    adam = Adam([weights], lr=1.0, eps=eps, eps_mode=mode, sparse_mode="dense")
    adam.param_groups[0]["step"] = t - 1
    found = np.empty((idle + 1, len(gradients)))
    for step in range(idle + 1):
        before = weights.detach().clone()
        weights.grad = torch.from_numpy(gradients.copy()) if step == 0 else torch.zeros_like(weights)
        adam.step()
        found[step] = (before - weights.detach()).numpy()
    return found


def moved_untouched(gradient: float, t: int, eps: float, idle: int) -> float:
    """How far a row moves, in learning rates, in `idle` steps that touch another row, if the update is sparse."""
    table = torch.zeros((2, 1), dtype=torch.float64, requires_grad=True)
    adam = Adam([table], lr=1.0, eps=eps, sparse_mode="paper")
    adam.param_groups[0]["step"] = t - 1
    first = None
    for step in range(idle + 1):
        row = torch.tensor([[min(step, 1)]])
        table.grad = torch.sparse_coo_tensor(row, torch.full((1, 1), gradient, dtype=torch.float64), (2, 1))
        adam.step()
        first = float(table[0, 0].detach()) if first is None else first
    return abs(float(table[0, 0].detach()) - (first or 0.0))


def threshold(t: int, eps: float, mode: str) -> tuple[float, float, float]:
    """The gradient g* at which the step grows fastest with log g, that slope, and the level of saturation.

    All three are measured from Adam's steps on a fine grid of gradients, not from a formula.
    """
    logs = np.linspace(np.log(eps) - 8, np.log(eps) + 24, 12_801)
    steps = moved(np.exp(logs), t, eps, mode)[0]
    slopes = np.gradient(steps, logs)
    half = np.interp(steps[-1] / 2, steps, logs)
    return float(np.exp(half)), float(slopes.max()), float(steps[-1])


def spread(values: Sequence[float]) -> float:
    """The range of values, relative to their mean."""
    return float((max(values) - min(values)) / np.mean(values))
