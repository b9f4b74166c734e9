"""Fully connected layers by oneDNN (CPU, float32).

torch uses MKL for them, which is 10 to 40 % slower than oneDNN at the shapes of a training step. Both compute in
plain float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.parts.ways import Way

# With fewer rows the call costs what oneDNN saves.
ROWS = 256


def _against(layer: Any, x: Tensor) -> str:
    if torch.compiler.is_compiling():
        return "the model is traced"
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu") or not x.dtype == layer.weight.dtype == torch.float32:
        return "not float32 on a CPU"
    if x.dim() != 2 or len(x) < ROWS or x.shape[1] != layer.in_features:
        return f"not {ROWS} rows or more of its width"
    return "" if available() else "torch was built without oneDNN"


ONEDNN = Way(
    "oneDNN",
    _against,
    lambda layer, x: AffineProduct.apply(x, layer.weight, layer.bias),  # type: ignore[no-untyped-call]
)


@cache
def available() -> bool:
    """Whether this torch has oneDNN's product of plain tensors."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b by oneDNN: (B, K), (N, K), (N,) -> (B, N)."""
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        # Of columns of a wider matrix oneDNN has no fast product: it takes 1000 times as long.
        weight = weight.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class AffineProduct(torch.autograd.Function):
    """y = x W^T + b; dx = dy W, dW = dy^T x, db = sum dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override, unused-ignore]
        x, weight = ctx.saved_tensors
        by_x = product(grad, weight.T) if ctx.needs_input_grad[0] else None
        return by_x, product(grad.T, x.T), grad.sum(dim=0) if ctx.needs_input_grad[2] else None
