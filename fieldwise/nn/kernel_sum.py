"""The sum of all pairs' kernel products by two large matrix products, instead of 741 small ones each way (CPU).

With x (F D) a row's vectors side by side, and M the matrix of blocks K_ij above its diagonal, K_ij^T below and zeros on
it, the sum over pairs of v_i^T K_ij v_j is x M x / 2. Its gradients, where g is that by the sum, are g M x by the
vectors, with the product that is there already, and by the kernels the blocks above the diagonal of X^T diag(g) X.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.nn import affine
from fieldwise.nn.products import narrowed

# Strips of X^T diag(g) X, of which only the half above the diagonal is wanted: more waste less, but are slower each.
STRIPS = 4


def kernel_sum(v: Tensor, kernel: Tensor) -> Tensor:
    """Sum of v_i^T K_ij v_j over pairs: (B, F, D), (P, D, D) -> (B, 1), in float32 where bf16 multiplies."""
    found: Tensor = KernelSumProduct.apply(v, kernel)  # type: ignore[no-untyped-call]
    return found


class KernelSumProduct(torch.autograd.Function):
    """The sum with gradients. The rows' products M x are kept: they are the vectors' gradients but for a factor."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, kernel: Tensor) -> Tensor:
        rows, kernels = narrowed(v, kernel)
        x, matrix = rows.flatten(1), _matrix(kernels, v.shape[1])
        made = _times(x, matrix)
        ctx.save_for_backward(x, made)
        ctx.shape, ctx.kinds = v.shape, (v.dtype, kernel.dtype)
        return _dots(x, made).div_(2)[:, None]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override, unused-ignore]
        x, made = ctx.saved_tensors
        by_v = (grad * made).view(ctx.shape).to(ctx.kinds[0])
        return by_v, _by_kernel(x, (grad * x).to(x.dtype), ctx.shape[1]).to(ctx.kinds[1])


def _by_kernel(x: Tensor, weighted: Tensor, fields: int) -> Tensor:
    """The blocks above the diagonal of X^T diag(g) X, with `weighted` rows g x: (P, D, D)."""
    dim = x.shape[1] // fields
    first, second = torch.triu_indices(fields, fields, offset=1, device="cpu")
    found = x.new_empty(len(first), dim, dim)
    for low, high in _strips(fields):
        strip = x[:, low * dim : high * dim].T @ weighted[:, low * dim :]
        blocks = strip.view(high - low, dim, fields - low, dim).transpose(1, 2)
        # The pairs of fields low ... high - 1 as first ones lie side by side.
        start, end = (low * (2 * fields - low - 1) // 2, high * (2 * fields - high - 1) // 2)
        found[start:end] = blocks[first[start:end] - low, second[start:end] - low]
    return found


def _matrix(kernel: Tensor, fields: int) -> Tensor:
    """Kernels (P, D, D) -> M (F D, F D)."""
    first, second = torch.triu_indices(fields, fields, offset=1, device="cpu")
    dim = kernel.shape[1]
    blocks = kernel.new_zeros(fields, fields, dim, dim)
    blocks[first, second] = kernel
    blocks[second, first] = kernel.mT
    return blocks.transpose(1, 2).reshape(fields * dim, fields * dim)


def _strips(fields: int) -> Iterator[tuple[int, int]]:
    """All fields in strips of about one size.

    >>> list(_strips(9))
    [(0, 2), (2, 4), (4, 7), (7, 9)]
    """
    count = min(STRIPS, fields)
    ends = [round(fields * number / count) for number in range(count + 1)]
    yield from itertools.pairwise(ends)


def _times(x: Tensor, symmetric: Tensor) -> Tensor:
    """x M by the faster library."""
    fast = x.dtype == torch.float32 and len(x) >= affine.ROWS and affine.available()
    return affine.product(x, symmetric) if fast else x @ symmetric


def _dots(one: Tensor, two: Tensor) -> Tensor:
    """Each row's inner product, in float32 at least: of many summands a narrow type would lose some."""
    wide = torch.promote_types(one.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        found: Tensor = torch.linalg.vecdot(one.to(wide), two.to(wide))
    return found
