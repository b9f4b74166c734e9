"""Products of all pairs of field vectors without their copies (CPU).

Pairs of one first field i lie side by side, and so do their second fields i+1 ... F-1: slices do for both. Each
function equals the formula that it names, gradients too; what it would have to keep for them it computes again while it
is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops import running


def pays(v: Tensor) -> bool:
    """Whether to go this way: on a CPU, and where nobody traces the model to write it down."""
    return v.device.type == "cpu" and not torch.compiler.is_compiling()


def first_fields(fields: int) -> Iterator[tuple[int, slice]]:
    """Each first field and where its pairs are.

    >>> list(first_fields(3))
    [(0, slice(0, 2, None)), (1, slice(2, 3, None))]
    """
    start = 0
    for i in range(fields - 1):
        yield i, slice(start, start + fields - 1 - i)
        start += fields - 1 - i


class PairProducts(torch.autograd.Function):
    """v_i * v_j of all pairs: (B, F, D) -> (B, P, D)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        fields = v.shape[1]
        products = v.new_empty(v.shape[0], fields * (fields - 1) // 2, v.shape[2])
        for i, places in first_fields(fields):
            torch.mul(v[:, i, None], v[:, i + 1 :], out=products[:, places])
        return products

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override, unused-ignore]
        (v,) = ctx.saved_tensors
        found = torch.zeros_like(v)
        for i, places in first_fields(v.shape[1]):
            found[:, i + 1 :].addcmul_(grad[:, places], v[:, i, None].expand(-1, v.shape[1] - 1 - i, -1))
            found[:, i] += (grad[:, places] * v[:, i + 1 :]).sum(dim=1)
        return found


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


def narrowed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that matrix products have here: that of autocast, where it is on."""
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensors[0].dtype
    return tuple(tensor.to(dtype) for tensor in tensors)
