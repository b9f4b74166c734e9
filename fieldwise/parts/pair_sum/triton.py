"""FM's second-order part on a GPU (Triton), for scoring; in training torch's compiler fuses the same operations."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

FIELDS = 8  # in a tile of vectors


@triton.jit
def _pair_sums(v, y, F: tl.constexpr, D: tl.constexpr, FIELDS: tl.constexpr, DW: tl.constexpr):
    """y[row] = (|sum of v_f|^2 - sum of |v_f|^2) / 2, over the row's fields f: one pass over its vectors."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, DW)[None, :]
    total, squares = tl.zeros((FIELDS, DW), tl.float32), tl.zeros((FIELDS, DW), tl.float32)
    for start in tl.range(0, F, FIELDS, loop_unroll_factor=5):  # five loads in flight at a time
        f = (start + tl.arange(0, FIELDS))[:, None]
        values = tl.load(v + row * (F * D) + f * D + d, (f < F) & (d < D), 0.0).to(tl.float32)
        total += values
        squares += values * values
    whole = tl.sum(total, 0)
    tl.store(y + row, 0.5 * (tl.sum(whole * whole, 0) - tl.sum(tl.sum(squares, 0), 0)))


def pair_sums(v: Tensor) -> Tensor:
    """FM's second-order part: v (B, F, D) -> (B, 1)."""
    y, (rows, fields, dim) = v.new_empty(len(v), 1), v.shape
    sizes = {"F": fields, "D": dim, "FIELDS": FIELDS, "DW": triton.next_power_of_2(dim)}
    _pair_sums[(rows,)](v, y, num_warps=1, **sizes)
    return y
