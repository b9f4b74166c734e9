"""A convolution along the fields, and the largest value of each channel, as one operation (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.convolution.gpu import by_window
from fieldwise.parts.ways import Way, no_loops_of_rows


class WindowMax(torch.autograd.Function):
    """max over windows t of W . [v_t ... v_{t + width - 1}]: (B, F, D), (C, width D) -> (B, C).

    The first of equal windows gets the gradient; `amax` would divide it among them.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, weight: Tensor) -> Tensor:
        from fieldwise.loops.blocks import BLOCK
        from fieldwise.parts.convolution import loops

        compute: Any = loops.forward
        v, weight = v.contiguous(), weight.contiguous()
        found = v.new_empty(len(v), len(weight))
        places = torch.empty(found.shape, dtype=torch.int16 if v.shape[1] < 2**15 else torch.int64)
        arrays = [running.array(part) for part in (v, weight, found, places)]

        def part(low: int, high: int, thread: int) -> None:
            compute(*arrays[:2], low, high, *arrays[2:])

        running.on_threads(part, -(-len(v) // BLOCK), running.threads_for(len(v)))
        ctx.save_for_backward(v, weight, places)
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.convolution import loops

        v, weight, places = ctx.saved_tensors
        by_v = torch.zeros_like(v)
        (by_weight,) = running.over_rows(loops.backward, len(v), [grad, places, v, weight], [by_v], [weight])
        return by_v, by_weight


def _by_loops(part: Any, v: Tensor) -> Tensor:
    (convolution,) = part.convolutions
    with torch.autocast("cpu", enabled=False):
        return torch.relu(WindowMax.apply(v, by_window(convolution)))  # type: ignore[no-untyped-call]


LOOPS = Way(
    "compiled loops",
    lambda part, v: no_loops_of_rows(v) if part.keep == [1] else "keeps several values",
    _by_loops,
)
