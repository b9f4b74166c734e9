"""Fully connected layers by the faster of torch's two libraries for matrix products (CPU, float32).

torch takes MKL, which is 10 to 40 % slower than oneDNN at the shapes of a training step. Both are plain float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.ways import Way, no_loops

# Below, the call costs what the library gains.
ROWS = 256
# Outputs from which on a turned copy of their gradient pays.
WIDE = 64


def _against(layer: Any, x: Tensor) -> str:
    if torch.compiler.is_compiling():
        return "the model is traced"
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or not x.dtype == layer.weight.dtype == torch.float32:
        return "not float32 on a CPU"
    if x.dim() != 2 or len(x) < ROWS or x.shape[1] != layer.in_features:
        return f"not {ROWS} rows of its width"
    return "" if available() else "torch was built without oneDNN"


def _by_onednn(layer: Any, x: Tensor) -> Tensor:
    found: Tensor = AffineProduct.apply(x, layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return found


ONEDNN = Way("oneDNN", _against, _by_onednn)


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
        wide = grad.shape[1] >= WIDE and not no_loops(grad)
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
