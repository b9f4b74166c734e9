"""A norm with its ReLU as one operation (CPU): layer norm, and `PairNorm` of a kind with shared statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.norm.norms import EPSILON, PairNorm
from fieldwise.parts.ways import Way, no_loops_of_rows


class LayerNormRelu(torch.autograd.Function):
    """relu(layer norm of x): (B, H), gain and shift (H,) -> (B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
        from fieldwise.parts.norm import layer_loops as loops

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
        from fieldwise.parts.norm import layer_loops as loops

        backward: Any = loops.backward
        x, gain, _, _ = saved = ctx.saved_tensors
        threads, dx = running.threads_for(len(x)), torch.empty_like(x)
        # Each thread has sums of its own: one after the other, the result does not depend on which is first.
        by_gain, by_shift = gain.new_zeros(2, threads, len(gain))
        arrays = [running.array(part) for part in (grad, *saved)]
        found = [running.array(part) for part in (by_gain, by_shift, dx)]

        def part(low: int, high: int, thread: int) -> None:
            backward(*arrays, low, high, found[0][thread], found[1][thread], found[2])

        running.on_threads(part, len(x), threads)
        return dx, by_gain.sum(0), by_shift.sum(0), None


class NormRelu(torch.autograd.Function):
    """relu(PairNorm(x)): (P, B, H), gain and shift (1 or P, 1, H) -> (P, B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        from fieldwise.parts.norm import pair_loops as loops

        forward: Any = loops.forward
        y, stats = torch.empty_like(x), torch.empty(x.shape[1], 2, dtype=torch.float64)
        arrays = [running.array(part) for part in (x, gain.squeeze(1), shift.squeeze(1), stats, y)]

        def part(low: int, high: int, thread: int) -> None:
            forward(*arrays[:3], EPSILON, low, high, *arrays[3:])

        running.by_rows(part, x.shape[1])
        ctx.save_for_backward(x, gain.squeeze(1), shift.squeeze(1), stats)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.norm import pair_loops as loops

        backward: Any = loops.backward
        x, gain, _, _ = saved = ctx.saved_tensors
        threads, dx = running.threads_for(x.shape[1]), torch.empty_like(x)
        # Each thread has sums of its own: one after the other, the result does not depend on which is first.
        by_gain, by_shift = gain.new_zeros(2, threads, x.shape[0], x.shape[2])
        arrays = [running.array(part) for part in (grad.contiguous(), *saved)]
        found = [running.array(part) for part in (by_gain, by_shift, dx)]

        def part(low: int, high: int, thread: int) -> None:
            backward(*arrays, low, high, found[0][thread], found[1][thread], found[2])

        running.on_threads(part, grad.shape[1], threads)
        own = (len(gain), -1, 1, x.shape[2])
        return dx, *(total.sum(0).view(own).sum(1) for total in (by_gain, by_shift))


def _no_loops(x: Tensor, activation: nn.Module) -> str:
    if not isinstance(activation, nn.ReLU):
        return "no ReLU"
    return no_loops_of_rows(x, along=-2, narrow=True) or ("" if x.is_contiguous() else "not contiguous")


def _no_layer_loops(x: Tensor, norm: nn.Module, activation: nn.Module) -> str:
    return _no_loops(x, activation) if isinstance(norm, nn.LayerNorm) else "no layer norm"


def _no_pair_loops(x: Tensor, norm: nn.Module, activation: nn.Module) -> str:
    shared = isinstance(norm, PairNorm) and not norm.alone
    return _no_loops(x, activation) if shared else "no norm over all pairs"


def _layer_by_loops(x: Tensor, norm: Any, activation: nn.Module) -> Tensor:
    found: Tensor = LayerNormRelu.apply(x, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
    return found


def _pairs_by_loops(x: Tensor, norm: Any, activation: nn.Module) -> Tensor:
    found: Tensor = NormRelu.apply(x, norm.gain, norm.shift)  # type: ignore[no-untyped-call]
    return found


LAYER_LOOPS = Way("compiled loops", _no_layer_loops, _layer_by_loops)
PAIR_LOOPS = Way("compiled loops over pairs", _no_pair_loops, _pairs_by_loops)
