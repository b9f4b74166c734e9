"""Kernel products of all pairs on a GPU (Triton), without writing the pairs' vectors to memory.

The formula is `KernelProduct.forward` with kernel `mat`. For each row b and pair p = (i, j):

    y_p = v_i^T K_p v_j        dv_i = dy K_p v_j        dv_j = dy K_p^T v_i        dK_p = sum over rows of dy v_i v_j^T
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.loops.gpu import ROWS, padded
from fieldwise.loops.triton_pairs import fields_of, store_side, sum_sides, vectors_of

WALKS = 4  # programs that divide a pair's rows


@triton.jit
def _kernel_of(kernel, pair, D: tl.constexpr, WIDE: tl.constexpr):
    """K of the pair, padded with zeros."""
    k = tl.arange(0, WIDE)
    cells = (k < D)[:, None] & (k < D)[None, :]
    return tl.load(kernel + pair * (D * D) + k[:, None] * D + k[None, :], cells, 0.0)


@triton.jit
def _products(
    v, kernel, first, second, y, B, D: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    WALKS: tl.constexpr,
):  # fmt: skip
    """y[pair]; a program loads the pair's kernel once and goes through some of the rows."""
    pair = tl.program_id(0)
    i, j = fields_of(first, second, pair)
    k = _kernel_of(kernel, pair, D, WIDE)
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, D, WIDE), vectors_of(v, rows, j, B, D, WIDE)
        found = tl.sum(tl.dot(p, k, input_precision="tf32x3") * q.to(tl.float32), 1)
        tl.store(y + pair * B + rows, found.to(y.dtype.element_ty), rows < B)


@triton.jit
def _gradients(
    v, kernel, first, second, dy, sides, dkernel, B, D: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Both sides' gradients of the pair, and its kernel's."""
    pair = tl.program_id(0)
    i, j = fields_of(first, second, pair)
    k, d = _kernel_of(kernel, pair, D, WIDE), tl.arange(0, WIDE)
    total = tl.zeros((WIDE, WIDE), tl.float32)
    for start in range(0, B, ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, D, WIDE), vectors_of(v, rows, j, B, D, WIDE)
        pull = tl.load(dy + pair * B + rows, rows < B, 0.0).to(tl.float32)[:, None]
        dp = tl.dot(q, tl.trans(k), input_precision="ieee") * pull
        dq = tl.dot(p, k, input_precision="ieee") * pull
        store_side(sides, dp, pair, 0, rows, B, D, WIDE)
        store_side(sides, dq, pair, 1, rows, B, D, WIDE)
        total = tl.dot(tl.trans(p), (q.to(tl.float32) * pull).to(p.dtype), total, input_precision="ieee")
    cells = (d < D)[:, None] & (d < D)[None, :]
    tl.store(dkernel + pair * (D * D) + d[:, None] * D + d[None, :], total.to(dkernel.dtype.element_ty), cells)


def _sizes(v: Tensor) -> dict[str, int]:
    return {"D": v.shape[2], "ROWS": ROWS, "WIDE": padded(v.shape[2])}


@torch.library.custom_op("fieldwise::kernel_products", mutates_args=())
def kernel_products(v: Tensor, kernel: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """v (F, B, D), kernel (P, D, D), contiguous and of one dtype -> y (P, B)."""
    y = v.new_empty(len(kernel), v.shape[1])
    _products[(len(kernel), WALKS)](v, kernel, first, second, y, v.shape[1], WALKS=WALKS, **_sizes(v))
    return y


@torch.library.custom_op("fieldwise::kernel_products_backward", mutates_args=())
def kernel_products_backward(
    dy: Tensor, v: Tensor, kernel: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of v and kernel."""
    sides = v.new_empty(len(kernel), 2, *v.shape[1:])
    dkernel = torch.empty_like(kernel)
    _gradients[(len(kernel),)](v, kernel, first, second, dy, sides, dkernel, v.shape[1], **_sizes(v))
    return sum_sides(sides, v), dkernel


@kernel_products.register_fake
def _(v: Tensor, kernel: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return v.new_empty(len(kernel), v.shape[1])


@kernel_products_backward.register_fake
def _(dy: Tensor, v: Tensor, kernel: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), torch.empty_like(kernel)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (*kernel_products_backward(dy.contiguous(), *ctx.saved_tensors), None, None)


kernel_products.register_autograd(_backward, setup_context=_remember)
