"""Products of all pairs of field vectors without their copies: one loop over the first field of the pairs (CPU).

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
    """v_i^T K_ij v_j of all pairs, one matrix product for each first field: (B, F, D), (P, D, D) -> (B, P).

    With the kernels of field i side by side, W_i (D, n D), the products are the rows' sums of (v_i W_i) * [v_j ...].
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(v, kernel)
        products = v.new_empty(v.shape[0], len(kernel))
        for i, places in first_fields(v.shape[1]):
            products[:, places] = (_projected(v, kernel, i, places) * v[:, i + 1 :]).sum(dim=2)
        return products

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        v, kernel = ctx.saved_tensors
        # Many small sums: a narrow type would lose them.
        by_v = torch.zeros(v.shape, dtype=torch.promote_types(v.dtype, torch.float32))
        by_kernel = torch.empty_like(kernel)
        for i, places in first_fields(v.shape[1]):
            g = grad[:, places, None]
            by_v[:, i + 1 :] += g * _projected(v, kernel, i, places)
            weighted = (g * v[:, i + 1 :]).flatten(1)
            by_v[:, i] += weighted @ _side_by_side(kernel[places]).T
            by_kernel[places] = (v[:, i].T @ weighted).view(kernel.shape[1], -1, kernel.shape[2]).transpose(0, 1)
        return by_v.to(v.dtype), by_kernel


def _side_by_side(kernels: Tensor) -> Tensor:
    """(n, D, D) -> (D, n D)."""
    return kernels.transpose(0, 1).flatten(1)


def _projected(v: Tensor, kernel: Tensor, i: int, places: slice) -> Tensor:
    """v_i^T K_ij of all j > i: (B, n, D)."""
    projected: Tensor = (v[:, i] @ _side_by_side(kernel[places])).unflatten(1, (-1, kernel.shape[2]))
    return projected


def narrowed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that matrix products have here: that of autocast, where it is on."""
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensors[0].dtype
    return tuple(tensor.to(dtype) for tensor in tensors)
