"""FTRL-Proximal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fieldwise.optim.rows import Group, RowOptimizer, check


class FTRL(RowOptimizer):
    """Follow the regularised leader, per coordinate (McMahan et al. 2013, algorithm 1), on touched rows.

    A weight is a function of z and n, the sum of its squared gradients:

        w = -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2)  where |z| > l1, else 0

    A coordinate without a gradient so far (n = 0) keeps its weight, and starts with the z that gives that weight; a
    zero weight has z = 0. If anything else changes a weight later, the next step overwrites it. alpha is group["lr"],
    and cannot follow a schedule: all weights are a function of it.
    State: z, n.
    """

    names = ("z", "n")
    bound = ("lr", "beta", "l1", "l2")

    def __init__(
        self, params: Iterable[Any], alpha: float = 0.1, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0
    ) -> None:
        check(0 < alpha < math.inf, "lr (alpha) must be positive", alpha)
        check(0 < beta < math.inf, "beta must be positive", beta)
        check(0 <= l1 < math.inf, "l1 must not be negative", l1)
        check(0 <= l2 < math.inf, "l2 must not be negative", l2)
        super().__init__(params, lr=alpha, beta=beta, l1=l1, l2=l2)

    def update(self, group: Group, weights: Tensor, grad: Tensor, state: list[Tensor], gap: Tensor | None) -> None:
        alpha, beta, l1, l2 = (group[name] for name in ("lr", "beta", "l1", "l2"))
        z, n = state
        start = torch.sign(weights).mul_(-l1).sub_(weights, alpha=beta / alpha + l2)
        z.copy_(torch.where(n == 0, start, z))
        root = n.sqrt()
        n.addcmul_(grad, grad)
        new_root = n.sqrt()
        z.add_(grad).addcmul_(new_root - root, weights, value=-1 / alpha)
        new = (z.clamp(-l1, l1) - z).div_(new_root.add_(beta).div_(alpha).add_(l2))
        weights.copy_(torch.where(n == 0, weights, new))
