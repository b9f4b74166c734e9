"""The sum of squares of an L2 penalty, in one pass over memory forward and one backward (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def square_sum(x: Tensor) -> Tensor:
    """The sum of x^2, of any shape -> (). Storing the squares first would cost three passes."""
    if x.device.type != "cpu":
        return x.square().sum()
    found: Tensor = SquareSum.apply(x)  # type: ignore[no-untyped-call]
    return found


class SquareSum(torch.autograd.Function):
    """y = sum x^2; dx = 2 dy x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        flat = x.reshape(-1)
        return torch.dot(flat, flat)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override, unused-ignore]
        (x,) = ctx.saved_tensors
        by_x: Tensor = x * (2 * grad)
        return by_x
