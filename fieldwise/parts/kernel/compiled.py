"""Kernel products of all pairs by compiled loops (CPU): no pair's vectors are copied.

What would have to be kept for the way back is computed again while it is in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running
from fieldwise.parts.ways import Way, no_loops_of_rows


class KernelProducts(torch.autograd.Function):
    """v_i^T K_ij v_j of all pairs by compiled loops: (B, F, D), (P, D, D) -> (B, P)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, kernel: Tensor) -> Tensor:
        from fieldwise.parts.kernel import loops as kernel_products

        compute: Any = kernel_products.forward
        v, kernel = v.contiguous(), kernel.contiguous()
        ctx.save_for_backward(v, kernel)
        products = v.new_empty(len(v), len(kernel))
        arrays = [running.array(part) for part in (v, kernel, products)]
        running.by_rows(lambda low, high, _: compute(*arrays[:2], low, high, arrays[2]), len(v))
        return products

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        from fieldwise.parts.kernel import loops as kernel_products

        compute: Any = kernel_products.by_vectors
        v, kernel = ctx.saved_tensors
        grad, by_v = grad.contiguous(), torch.empty_like(v)
        arrays = [running.array(part) for part in (grad, v, kernel, by_v)]
        running.by_rows(lambda low, high, _: compute(*arrays[:3], low, high, arrays[3]), len(v))
        return by_v, by_kernels(grad, v)


def by_kernels(grad: Tensor, v: Tensor) -> Tensor:
    """Sum over rows of g v_i v_j^T of all pairs, with g (B, P) or, for all pairs of a row, (B, 1): (P, D, D)."""
    from fieldwise.parts.kernel import loops as kernel_products

    compute: Any = kernel_products.by_kernels
    threads, (_, fields, dim) = running.threads_for(len(v)), v.shape
    # Each thread has sums of its own: one after the other, the result does not depend on which is first.
    sums = v.new_zeros(threads, fields * (fields - 1) // 2 * dim * dim)
    arrays = [running.array(part) for part in (grad, v, sums)]
    running.on_threads(lambda low, high, thread: compute(*arrays[:2], low, high, arrays[2][thread]), len(v), threads)
    by_first = sums.sum(0).split([(fields - 1 - i) * dim * dim for i in range(fields - 1)])
    return torch.cat([own.view(dim, -1, dim).transpose(0, 1) for own in by_first])


def no_matrix_loops(part: Any, v: Tensor) -> str:
    """Against compiled loops over pairs' matrices."""
    if part.kind != "mat":
        return "kernels that are no matrices"
    return no_loops_of_rows(v) or ("" if v.dtype == part.kernel.entries.dtype else "vectors and kernels of two types")


def _by_loops(part: Any, v: Tensor) -> Tensor:
    found: Tensor = KernelProducts.apply(v, part.kernel())  # type: ignore[no-untyped-call]
    return found


LOOPS = Way("compiled loops", no_matrix_loops, _by_loops)
