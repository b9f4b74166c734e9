"""The fused norm of sub-networks with its ReLU as one operation (CPU): `PairNorm` of a kind with shared statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.kernels import rows
from fieldwise.nn.norms import EPSILON, PairNorm

# Rows that are worth a thread of their own; fewer are done before the loops are loaded.
ROWS_PER_THREAD = 100


def takes(norm: Any, activation: Any, x: Tensor) -> bool:
    """Whether the compiled loops can do this norm and activation of units x (P, B, H)."""
    # Asked first: a look at the number of rows would bind an exported model to it.
    if torch.compiler.is_compiling():
        return False
    known = isinstance(norm, PairNorm) and not norm.alone and isinstance(activation, torch.nn.ReLU)
    return known and x.shape[1] >= ROWS_PER_THREAD and x.is_contiguous() and rows.available(x.detach())


class NormRelu(torch.autograd.Function):
    """relu(PairNorm(x)): (P, B, H), gain and shift (1 or P, 1, H) -> (P, B, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        from fieldwise.kernels import pair_norm as loops

        forward: Any = loops.forward
        y, stats = torch.empty_like(x), torch.empty(2, x.shape[1], dtype=torch.float64)
        arrays = [part.detach().contiguous().numpy() for part in (x, gain, shift, stats, y)]

        def part(low: int, high: int, thread: int) -> None:
            forward(*arrays[:3], EPSILON, low, high, *arrays[3:])

        rows.on_threads(part, x.shape[1], _threads(x))
        ctx.save_for_backward(x, gain, shift, stats)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        from fieldwise.kernels import pair_norm as loops

        backward: Any = loops.backward
        saved, threads = ctx.saved_tensors, _threads(ctx.saved_tensors[0])
        dx, sums = torch.empty_like(saved[0]), torch.empty_like(saved[3])
        # Each thread has sums of its own: one after the other, the result does not depend on which is first.
        pairs, _, units = dx.shape
        by_gain, by_shift = dx.new_zeros(2, threads, pairs, units)
        arrays = [part.detach().contiguous().numpy() for part in (grad, *saved)]
        found = [part.numpy() for part in (sums, by_gain, by_shift, dx)]

        def part(low: int, high: int, thread: int) -> None:
            backward(*arrays, low, high, found[0], found[1][thread], found[2][thread], found[3])

        rows.on_threads(part, grad.shape[1], threads)
        own = (len(saved[1]), -1, 1, units)
        return dx, *(total.sum(0).view(own).sum(1) for total in (by_gain, by_shift))


def _threads(x: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), x.shape[1] // ROWS_PER_THREAD))
