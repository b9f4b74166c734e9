"""Kernel products of all pairs by compiled loops, without copies of the pairs' vectors (CPU).

The backward pass computes intermediate values again, in the cache, instead of keeping them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.ways import Way, no_loops_of_rows


class KernelProducts(torch.autograd.Function):
    """v_i^T K_ij v_j of all pairs: (B, F, D), (P, D, D) -> (B, P)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, kernel: Tensor) -> Tensor:
        from fieldwise.parts.kernel import loops

        v, kernel = v.contiguous(), kernel.contiguous()
        ctx.save_for_backward(v, kernel)
        products = v.new_empty(len(v), len(kernel))
        running.over_rows(loops.forward, len(v), [v, kernel], [products])
        return products

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.kernel import loops

        v, kernel = ctx.saved_tensors
        by_v = torch.empty_like(v)
        running.over_rows(loops.by_vectors, len(v), [grad, v, kernel], [by_v])
        return by_v, by_kernels(grad, v)


def by_kernels(grad: Tensor, v: Tensor) -> Tensor:
    """Sum over rows of g v_i v_j^T for all pairs: (P, D, D). g is (B, P), or (B, 1) if a row's pairs share it."""
    from fieldwise.parts.kernel import loops

    _, fields, dim = v.shape
    like = v.new_empty(fields * (fields - 1) // 2 * dim * dim)
    (sums,) = running.over_rows(loops.by_kernels, len(v), [grad, v], [], [like])
    by_first = sums.split([(fields - 1 - i) * dim * dim for i in range(fields - 1)])
    return torch.cat([own.view(dim, -1, dim).transpose(0, 1) for own in by_first])


def no_matrix_loops(part: Any, v: Tensor) -> str:
    """Whether compiled loops can run over the pairs' matrices."""
    if part.kind != "mat":
        return "the kernels are not matrices"
    if v.dtype != part.kernel.entries.dtype:
        return "vectors and kernels have different types"
    return no_loops_of_rows(v)


LOOPS = Way(
    "compiled loops",
    no_matrix_loops,
    lambda part, v: KernelProducts.apply(v, part.kernel()),  # type: ignore[no-untyped-call]
)
