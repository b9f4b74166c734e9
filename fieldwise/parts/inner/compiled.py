"""Inner products of all pairs of field vectors by compiled loops, without a matrix that holds each twice (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.ways import Way, no_loops_of_rows


class InnerProducts(torch.autograd.Function):
    """v_i . v_j of all pairs: (B, F, D) -> (B, P)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        from fieldwise.parts.inner import loops

        v = v.contiguous()
        ctx.save_for_backward(v)
        found = v.new_empty(v.shape[0], v.shape[1] * (v.shape[1] - 1) // 2)
        running.over_rows(loops.forward, len(v), [v], [found])
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.inner import loops

        (v,) = ctx.saved_tensors
        found = torch.empty_like(v)
        running.over_rows(loops.backward, len(v), [grad, v], [found])
        return found


LOOPS = Way(
    "compiled loops",
    lambda part, v: no_loops_of_rows(v),
    lambda part, v: InnerProducts.apply(v),  # type: ignore[no-untyped-call]
)
