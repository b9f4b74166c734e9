"""FFM's products on a GPU (Triton), for scoring; in training torch's compiler fuses the same operations."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _field_products(
    v, first, second, y, P, F: tl.constexpr, D: tl.constexpr, SCALE: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """y[row, p] = SCALE v_i[part for j] . v_j[part for i], p = (i, j)."""
    row, p = tl.program_id(0).to(tl.int64), tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    i, j = tl.load(first + p, p < P, 0).to(tl.int32), tl.load(second + p, p < P, 1).to(tl.int32)
    one, two = (
        v + row * (F * (F - 1) * D) + (i * (F - 1) + j - 1) * D,
        v + row * (F * (F - 1) * D) + (j * (F - 1) + i) * D,
    )
    total = tl.zeros((PAIRS,), tl.float32)
    for d in tl.static_range(D):
        total += tl.load(one + d, p < P, 0.0) * tl.load(two + d, p < P, 0.0)
    tl.store(y + row * P + p, total * SCALE, p < P)


def field_products(v: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """FFM's products: v (B, F, (F-1) D) -> (B, P)."""
    y, (rows, fields, wide), pairs = v.new_empty(len(v), len(first)), v.shape, triton.next_power_of_2(len(first))
    block = min(1024, pairs)
    sizes = {"F": fields, "D": wide // (fields - 1), "SCALE": scale, "PAIRS": block}
    _field_products[(rows, pairs // block)](v, first, second, y, len(first), **sizes)
    return y
