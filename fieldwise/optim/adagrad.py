"""AdaGrad."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fieldwise.optim.rows import Group, RowOptimizer, check


class AdaGrad(RowOptimizer):
    """w -= lr g / (sqrt(initial + sum of g^2) + eps), per coordinate, on touched rows.

    State: total, the sum of squares without the initial value, so that a row never touched is zero.
    """

    names = ("total",)

    def __init__(self, params: Iterable[Any], lr: float = 0.1, initial: float = 0.1, eps: float = 1e-8) -> None:
        check(0 < lr < math.inf, "lr must be positive", lr)
        check(0 <= initial < math.inf, "initial_accumulator must not be negative", initial)
        check(0 < eps < math.inf, "eps must be positive", eps)
        super().__init__(params, lr=lr, initial=initial, eps=eps)

    def update(self, group: Group, weights: Tensor, grad: Tensor, state: list[Tensor], gap: Tensor | None) -> None:
        (total,) = state
        total.addcmul_(grad, grad)
        root = (total + group["initial"]).sqrt_().add_(group["eps"])
        weights.addcdiv_(grad, root, value=-group["lr"])
