"""What kernels over pairs of fields share (Triton): a tile of a field's vectors, and sums from pairs to fields.

Vectors come field by field, (F, B, D), so that a tile of a field's rows is contiguous.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # numbers that a program sums


@triton.jit
def fields_of(first, second, pair):
    """The pair's two fields, in 32 bits: 64-bit addresses would take half of a program's registers."""
    return tl.load(first + pair).to(tl.int32), tl.load(second + pair).to(tl.int32)


@triton.jit
def vectors_of(v, rows, field, B, D: tl.constexpr, WIDE: tl.constexpr):
    """v[field, rows], padded with zeros: (ROWS, WIDE)."""
    d = tl.arange(0, WIDE)
    cells = (rows < B)[:, None] & (d < D)[None, :]
    return tl.load(v + field * B * D + rows[:, None] * D + d[None, :], cells, 0.0)


@triton.jit
def store_side(sides, values, pair, side: tl.constexpr, rows, B, D: tl.constexpr, WIDE: tl.constexpr):
    """sides[pair, side, rows] = values, in their dtype."""
    d = tl.arange(0, WIDE)
    cells = (rows < B)[:, None] & (d < D)[None, :]
    at = sides + (pair * 2 + side).to(tl.int64) * B * D + rows[:, None] * D + d[None, :]
    tl.store(at, values.to(sides.dtype.element_ty), cells)


@triton.jit
def _sum_sides(sides, places, grad, SIZE, F: tl.constexpr, TILE: tl.constexpr):
    """grad[f] = the sum of f's sides over all pairs with f; `places` (F, F-1) says where they are; SIZE is B D."""
    k, f = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1)
    total = tl.zeros((TILE,), tl.float32)
    for other in tl.range(F - 1, loop_unroll_factor=8):  # eight loads in flight at a time
        place = tl.load(places + f * (F - 1) + other).to(tl.int64)
        total += tl.load(sides + place * SIZE + k, k < SIZE, 0.0).to(tl.float32)
    tl.store(grad + f.to(tl.int64) * SIZE + k, total.to(grad.dtype.element_ty), k < SIZE)


def summed(parts: Tensor) -> Tensor:
    """parts (n, ...) -> their sum (...), by a product with ones: torch's sum is five times slower for such shapes.

    In float32 even under autocast.
    """
    with torch.autocast(parts.device.type, enabled=False):
        return torch.mv(parts.flatten(1).T, parts.new_ones(len(parts))).view(parts.shape[1:])


def sum_sides(sides: Tensor, like: Tensor) -> Tensor:
    """Gradients of both vectors of each pair (P, 2, B, D) -> gradients of the fields' vectors (F, B, D), as `like`."""
    fields, rows, dim = like.shape
    grad = torch.empty_like(like)
    grid = (triton.cdiv(rows * dim, TILE), fields)
    _sum_sides[grid](sides, _places(fields, like.device), grad, rows * dim, F=fields, TILE=TILE)
    return grad


@cache
def _places(fields: int, device: torch.device) -> Tensor:
    """Pair number * 2 + side for each field and each of its partners (F, F-1)."""
    number: dict[tuple[int, int], int] = {}
    for i in range(fields):
        for j in range(i + 1, fields):
            number[i, j] = len(number)
    found = [[2 * number[min(f, o), max(f, o)] + (f > o) for o in range(fields) if o != f] for f in range(fields)]
    return torch.tensor(found, dtype=torch.int32, device=device)
