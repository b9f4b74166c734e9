"""Layer norm and the ReLU after it as one operation (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.ways import Way, no_loops_of_rows


class LayerNormRelu(torch.autograd.Function):
    """relu(layer norm of x): (B, H), gain and shift (H,) -> (B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
        from fieldwise.parts.norm import loops

        y, stats = torch.empty_like(x), gain.new_empty(len(x), 2)
        running.over_rows(loops.forward, len(x), [x, gain, shift, torch.ones_like(gain), eps], [stats, y])
        ctx.save_for_backward(x, gain, shift, stats)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.norm import loops

        x, gain, shift, _ = ctx.saved_tensors
        dx = torch.empty_like(x)
        by_gain, by_shift = running.over_rows(loops.backward, len(x), [grad, *ctx.saved_tensors], [dx], [gain, shift])
        return dx, by_gain, by_shift, None


def _against(x: Tensor, norm: nn.Module, activation: nn.Module) -> str:
    if not isinstance(norm, nn.LayerNorm) or not isinstance(activation, nn.ReLU):
        return "not layer norm with ReLU"
    return no_loops_of_rows(x, narrow=True) or ("" if x.is_contiguous() else "not contiguous")


LOOPS = Way(
    "compiled loops",
    _against,
    lambda x, norm, activation: LayerNormRelu.apply(x, norm.weight, norm.bias, norm.eps),  # type: ignore[no-untyped-call]
)
