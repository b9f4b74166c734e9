"""The sum of all pairs' kernel products by one large matrix product, instead of a small one for each pair.

Let x (F D) be a row's vectors side by side, and M the matrix with blocks K_ij above its diagonal, K_ij^T below and
zeros on it. The sum over pairs of v_i^T K_ij v_j is x M x / 2. With g the gradient of the sum, the vectors' gradient
is g M x, where M x is known from the forward pass; the kernels' are those of single products that all have gradient g.

Kernels that are diagonal, or one number, never mix the places of a vector: each place d has its own matrix M_d (F, F).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.loops.gpu import computed
from fieldwise.parts.affine import compiled as affine
from fieldwise.parts.kernel.compiled import by_kernels, no_matrix_loops
from fieldwise.parts.ways import Way, no_loops_of_rows


class KernelSums(torch.autograd.Function):
    """Sum of v_i^T K_ij v_j over pairs: (B, F, D), (P, D, D) -> (B, 1). Autocast applies to M x alone."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, kernel: Tensor) -> Tensor:
        v = v.contiguous()
        made = _times(computed(v.flatten(1)), computed(_matrix(kernel, v.shape[1])))
        ctx.save_for_backward(v, made)
        return (v.flatten(1) * made).sum(dim=1, keepdim=True) / 2

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        v, made = ctx.saved_tensors
        return (grad * made).view(v.shape), by_kernels(grad, v)


def diagonal_sums(v: Tensor, kernel: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Sum of v_i^T diag(k_ij) v_j over pairs: (B, F, D), (P, 1, D or 1) -> (B, 1), without an array of pairs."""
    fields = v.shape[1]
    square = kernel.new_zeros(fields, fields, kernel.shape[2]).index_put((first, second), kernel[:, 0])
    by_place = v.permute(2, 0, 1)
    made = by_place @ square.permute(2, 0, 1)
    return (made * by_place).sum(dim=(0, 2))[:, None]


def _matrix(kernel: Tensor, fields: int) -> Tensor:
    """Kernels (P, D, D) -> M (F D, F D)."""
    first, second = torch.triu_indices(fields, fields, offset=1, device="cpu")
    dim = kernel.shape[1]
    blocks = kernel.new_zeros(fields, fields, dim, dim)
    blocks[first, second] = kernel
    blocks[second, first] = kernel.mT
    return blocks.transpose(1, 2).reshape(fields * dim, fields * dim)


def _times(x: Tensor, symmetric: Tensor) -> Tensor:
    """x M, by oneDNN where that is faster."""
    fast = x.dtype == torch.float32 and len(x) >= affine.ROWS and affine.available()
    return affine.product(x, symmetric) if fast else x @ symmetric


def _no_large_product(part: Any, v: Tensor) -> str:
    # For scores the single products are faster: they multiply half as many numbers as the large matrix.
    return no_matrix_loops(part, v) if torch.is_grad_enabled() else "only for gradients"


def _by_place(part: Any, v: Tensor) -> Tensor:
    with torch.autocast(v.device.type, enabled=False):
        return diagonal_sums(v, part.kernel(), part.first, part.second)


def _not_by_place(part: Any, v: Tensor) -> str:
    if part.kind == "mat":
        return "the kernels are matrices"
    return "" if v.is_cuda else no_loops_of_rows(v)


ONE_PRODUCT = Way(
    "one large product",
    _no_large_product,
    lambda part, v: KernelSums.apply(v, part.kernel()),  # type: ignore[no-untyped-call]
)
BY_PLACE = Way(
    "a product for each place",
    _not_by_place,
    _by_place,
)
