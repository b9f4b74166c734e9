"""Fully connected layers by the faster of torch's two libraries for matrix products (CPU, float32).

torch takes MKL, which is 10 to 40 % slower than oneDNN at the shapes of a training step. Both are plain float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fieldwise.loops import running
from fieldwise.parts.initial import xavier_

# Below, the call costs what the library gains.
ROWS = 256
# Outputs from which on a turned copy of their gradient pays.
WIDE = 64


def affine(width: int, out: int, weight_norm: bool = False) -> nn.Module:
    """A fully connected layer with Xavier weights and zero bias."""
    layer = Affine(width, out)
    xavier_(layer.weight, width, out)
    nn.init.zeros_(layer.bias)
    return nn.utils.parametrizations.weight_norm(layer) if weight_norm else layer


class Affine(nn.Linear):
    """x W^T + b: (B, width) -> (B, out). Zeros may stand behind x's rows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > self.in_features:
            return functional.linear(x, functional.pad(self.weight, (0, x.shape[-1] - self.in_features)), self.bias)
        if not pays(x, self.weight):
            return super().forward(x)
        found: Tensor = AffineProduct.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether to go this way: many rows of float32 on a CPU, and nobody who traces the model to write it down."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and x.dim() == 2
        and len(x) >= ROWS
        and available()
    )


@cache
def available() -> bool:
    """Whether this torch has oneDNN's product of plain tensors."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b by oneDNN: (B, K), (N, K), (N,) -> (B, N)."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class AffineProduct(torch.autograd.Function):
    """y = x W^T + b; dx = dy W, dW = dy^T x, db = sum dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        x, weight = ctx.saved_tensors
        by_x = product(grad, weight.T) if ctx.needs_input_grad[0] else None
        wide = grad.shape[1] >= WIDE and running.available(grad)
        by_weight = product(transposed(grad), x.T) if wide else grad.T @ x
        return by_x, by_weight, grad.sum(dim=0)


def transposed(x: Tensor) -> Tensor:
    """A copy of x.T: (B, K) -> (K, B). Of a matrix only seen as transposed oneDNN's product takes a tenth longer."""
    from fieldwise.parts.affine import loops as turn

    compute: Any = turn.turn
    found = x.new_empty(x.shape[1], x.shape[0])
    arrays = running.array(x), running.array(found)
    running.by_rows(lambda low, high, _: compute(arrays[0], low, high, arrays[1]), len(x))
    return found
