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

        forward: Any = loops.forward
        y, stats = torch.empty_like(x), gain.new_empty(len(x), 2)
        arrays = [running.array(part) for part in (x, gain, shift, torch.ones_like(gain), stats, y)]

        def part(low: int, high: int, thread: int) -> None:
            forward(*arrays[:4], eps, low, high, *arrays[4:])

        running.by_rows(part, len(x))
        ctx.save_for_backward(x, gain, shift, stats)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.norm import loops

        backward: Any = loops.backward
        x, gain, _, _ = saved = ctx.saved_tensors
        threads, dx = running.threads_for(len(x)), torch.empty_like(x)
        # Each thread has its own sums, added in a fixed order: the result does not depend on which thread ends first.
        by_gain, by_shift = gain.new_zeros(2, threads, len(gain))
        arrays = [running.array(part) for part in (grad, *saved)]
        found = [running.array(part) for part in (by_gain, by_shift, dx)]

        def part(low: int, high: int, thread: int) -> None:
            backward(*arrays, low, high, found[0][thread], found[1][thread], found[2])

        running.on_threads(part, len(x), threads)
        return dx, by_gain.sum(0), by_shift.sum(0), None


def _against(x: Tensor, norm: nn.Module, activation: nn.Module) -> str:
    if not isinstance(norm, nn.LayerNorm) or not isinstance(activation, nn.ReLU):
        return "not layer norm with ReLU"
    return no_loops_of_rows(x, narrow=True) or ("" if x.is_contiguous() else "not contiguous")


def _by_loops(x: Tensor, norm: Any, activation: nn.Module) -> Tensor:
    found: Tensor = LayerNormRelu.apply(x, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
    return found


LOOPS = Way("compiled loops", _against, _by_loops)
