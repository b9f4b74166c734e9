"""AFM's attention by compiled loops (CPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.ways import Way, no_loops_of_rows


class Scores(torch.autograd.Function):
    """h^T relu(W (v_i * v_j) + b) of all pairs: (B, F, D), (U, D), (U,), (U,) -> (B, P)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, weight: Tensor, bias: Tensor, last: Tensor) -> Tensor:
        from fieldwise.parts.attention import loops

        fields, v = v.shape[1], v.contiguous()
        ctx.save_for_backward(v, weight, bias, last)
        scores = v.new_empty(len(v), fields * (fields - 1) // 2)
        running.over_rows(loops.forward, len(v), [v, weight.T, bias, last], [scores])
        return scores

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.attention import loops

        v, weight, bias, last = ctx.saved_tensors
        by_v, like = torch.zeros_like(v), [part.double() for part in (weight.T, bias, last)]
        given = [grad, v, weight.T, weight, bias, last]
        found = running.over_rows(loops.backward, len(v), given, [by_v], like)
        by_weight, by_bias, by_last = (part.to(v.dtype) for part in found)
        return by_v, by_weight.T, by_bias, by_last


def _by_loops(part: Any, v: Tensor) -> Tensor:
    """Without an array of all pairs' products: sum_ij a_ij v_i * v_j = sum_i v_i * sum_{j>i} a_ij v_j."""
    fields = v.shape[1]
    with torch.autocast("cpu", enabled=False):
        scores = Scores.apply(v, part.attend.weight, part.attend.bias, part.score)  # type: ignore[no-untyped-call]
        weights: Tensor = part.dropout(torch.softmax(scores / part.temperature, dim=1))
        places = part.first * fields + part.second
        square = weights.new_zeros(len(v), fields * fields).index_copy(1, places, weights)
        pooled = (v * torch.bmm(square.unflatten(1, (fields, fields)), v)).sum(dim=1)
    found: Tensor = part.projected(pooled)
    return found


LOOPS = Way("compiled loops", lambda part, v: no_loops_of_rows(v), _by_loops)
