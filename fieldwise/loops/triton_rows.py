"""Looks up a table's rows by their ids on a GPU (Triton): torch's own kernel uses a block of threads for each row.

Plain version: functional.embedding(ids + offsets, table, sparse=True).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # numbers in a program


@triton.jit
def _take(
    ids, offsets, table, table2, places, found, found2, M,
    C: tl.constexpr, D: tl.constexpr, D2: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_D2: tl.constexpr,
):  # fmt: skip
    """places[k] = ids[k] + offsets[k mod C]; found[k] = table[places[k]], and the same for a second table."""
    k = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = k < M
    row = tl.load(ids + k, inside, 0).to(tl.int64) + tl.load(offsets + k % C, inside, 0)
    tl.store(places + k, row, inside)
    column, column2 = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_D2)
    cells, cells2 = inside[:, None] & (column < D)[None, :], inside[:, None] & (column2 < D2)[None, :]
    values = tl.load(table + row[:, None] * D + column[None, :], cells, 0.0)
    if D2:
        values2 = tl.load(table2 + row[:, None] * D2 + column2[None, :], cells2, 0.0)
        tl.store(found2 + k.to(tl.int64)[:, None] * D2 + column2[None, :], values2, cells2)
    tl.store(found + k.to(tl.int64)[:, None] * D + column[None, :], values, cells)


class Rows(torch.autograd.Function):
    """ids (B, C), offsets (C,), one or two tables (N, D) -> (B, C, D) of each; their sparse gradients share ids."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, offsets: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
        count, dims = ids.numel(), [table.shape[1] for table in tables]
        places = torch.empty(count, dtype=torch.int64, device=ids.device)
        found = tuple(table.new_empty(*ids.shape, table.shape[1]) for table in tables)
        wide = triton.next_power_of_2(dims[0])
        tall = max(1, TILE // wide)
        sizes = {"C": ids.shape[1], "D": dims[0], "D2": dims[1] if len(tables) > 1 else 0}
        sizes |= {"BLOCK_M": tall, "BLOCK_D": wide, "BLOCK_D2": triton.next_power_of_2(dims[-1])}
        given = offsets, tables[0], tables[-1], places, found[0], found[-1]
        _take[(triton.cdiv(count, tall),)](ids.contiguous(), *given, count, **sizes)
        ctx.save_for_backward(places)
        ctx.shapes = [table.shape for table in tables]
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        ids = places[None]
        with torch.sparse.check_sparse_tensor_invariants(False):  # a check would synchronise with the host
            parts = zip(grads, ctx.shapes, strict=True)
            found = [torch.sparse_coo_tensor(ids, grad.reshape(-1, shape[1]), shape) for grad, shape in parts]
        return None, None, *found
