"""Gradient descent with momentum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fieldwise.optim.rows import Group, RowOptimizer, check, power


class SGD(RowOptimizer):
    """b = momentum b + g; w -= lr b.

    In tables b decays in every step, and only rows in the batch move, as in Adam's `paper` mode: a row that
    comes back after k steps has momentum^k of its b left. State: momentum and last (N,), none without momentum.
    """

    settings = ("names", "decays")

    def __init__(self, params: Iterable[Any], lr: float = 0.01, momentum: float = 0.0) -> None:
        check(0 < lr < math.inf, "lr must be positive", lr)
        check(0 <= momentum < 1, "momentum must be in [0, 1)", momentum)
        self.names = ("momentum",) if momentum else ()
        self.decays = momentum > 0
        super().__init__(params, lr=lr, momentum=momentum)

    def update(self, group: Group, weights: Tensor, grad: Tensor, state: list[Tensor], gap: Tensor | None) -> None:
        if state:
            (buffer,) = state
            momentum = group["momentum"]
            grad = buffer.mul_(momentum if gap is None else power(momentum, gap, buffer)).add_(grad)
        weights.add_(grad, alpha=-group["lr"])
