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
        from fieldwise.parts.attention import loops as attention

        compute: Any = attention.forward
        fields, v = v.shape[1], v.contiguous()
        ctx.save_for_backward(v, weight, bias, last)
        scores = v.new_empty(len(v), fields * (fields - 1) // 2)
        arrays = [running.array(part) for part in (v, weight.T, bias, last, scores)]
        running.by_rows(lambda low, high, _: compute(*arrays[:4], low, high, arrays[4]), len(v))
        return scores

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.attention import loops as attention

        compute: Any = attention.backward
        v, weight, bias, last = ctx.saved_tensors
        threads, by_v = running.threads_for(len(v)), torch.zeros_like(v)
        # Each thread has its own sums, added in a fixed order: the result does not depend on which thread ends first.
        sums = [torch.zeros(threads, *shape, dtype=torch.float64) for shape in (weight.T.shape, bias.shape, last.shape)]
        arrays = [running.array(part) for part in (grad, v, weight.T, weight, bias, last)]

        def part(low: int, high: int, thread: int) -> None:
            compute(*arrays, low, high, running.array(by_v), *(running.array(found[thread]) for found in sums))

        running.on_threads(part, len(v), threads)
        by_weight, by_bias, by_last = (found.sum(0).to(v.dtype) for found in sums)
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
