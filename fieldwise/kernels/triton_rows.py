"""Rows of a table by their ids, on a GPU (Triton): torch's own kernel takes a block of threads for each short row.

Plain version: functional.embedding(ids + offsets, table, sparse=True).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # numbers of a program


@triton.jit
def _take(
    ids, offsets, table, places, found, M, C: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """places[k] = ids[k] + offsets[k mod C]; found[k] = table[places[k]]."""
    k = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    inside = k < M
    row = tl.load(ids + k, inside, 0).to(tl.int64) + tl.load(offsets + k % C, inside, 0)
    tl.store(places + k, row, inside)
    cells = inside[:, None] & (column < D)[None, :]
    values = tl.load(table + row[:, None] * D + column[None, :], cells, 0.0)
    tl.store(found + k.to(tl.int64)[:, None] * D + column[None, :], values, cells)


class Rows(torch.autograd.Function):
    """ids (B, C), offsets (C,), table (N, D) -> (B, C, D), with a sparse gradient."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, offsets: Tensor, table: Tensor) -> Tensor:
        count, dim = ids.numel(), table.shape[1]
        places = torch.empty(count, dtype=torch.int64, device=ids.device)
        found = torch.empty((*ids.shape, dim), dtype=table.dtype, device=ids.device)
        wide = triton.next_power_of_2(dim)
        tall = max(1, TILE // wide)
        block = {"C": ids.shape[1], "D": dim, "BLOCK_M": tall, "BLOCK_D": wide}
        _take[(triton.cdiv(count, tall),)](ids.contiguous(), offsets, table, places, found, count, **block)
        ctx.save_for_backward(places)
        ctx.shape = table.shape
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        (places,) = ctx.saved_tensors
        values = grad.reshape(-1, ctx.shape[1])
        with torch.sparse.check_sparse_tensor_invariants(False):  # a check would ask the host
            return None, None, torch.sparse_coo_tensor(places[None], values, ctx.shape)
