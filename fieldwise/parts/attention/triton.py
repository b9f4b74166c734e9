"""AFM's attention on a GPU (Triton), for scoring; in training torch's compiler fuses the same operations."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, nn

from fieldwise.loops.gpu import computed

PAIRS = 64  # in a tile


@triton.jit
def _attention(
    v, first, second, weight, bias, score, projection, y, P,
    F: tl.constexpr, D: tl.constexpr, A: tl.constexpr, SCALE: tl.constexpr, PAIRS: tl.constexpr, DW: tl.constexpr,
    AW: tl.constexpr,
):  # fmt: skip
    """x_p = v_i * v_j, s_p = SCALE score . relu(W x_p + b), y[row] = sum over p of softmax(s)_p (projection . x_p).

    The softmax is online: it sums exp(s - largest so far), and rescales the sums when a larger s comes.
    """
    row, d, a = tl.program_id(0).to(tl.int64), tl.arange(0, DW), tl.arange(0, AW)
    w = tl.load(weight + a[None, :] * D + d[:, None], (d < D)[:, None] & (a < A)[None, :], 0.0)
    b, h = tl.load(bias + a, a < A, 0.0).to(tl.float32), tl.load(score + a, a < A, 0.0).to(tl.float32)
    last = tl.load(projection + d, d < D, 0.0)
    largest, total, pooled = float("-inf"), 0.0, 0.0
    for start in range(0, P, PAIRS):
        p = start + tl.arange(0, PAIRS)
        i, j = tl.load(first + p, p < P, 0).to(tl.int32), tl.load(second + p, p < P, 0).to(tl.int32)
        cells, at = (p < P)[:, None] & (d < D)[None, :], v + row * (F * D) + d[None, :]
        x = tl.load(at + i[:, None] * D, cells, 0.0) * tl.load(at + j[:, None] * D, cells, 0.0)
        hidden = tl.dot(x.to(w.dtype), w, input_precision="tf32x3") + b[None, :]
        s = tl.where(p < P, tl.sum(tl.maximum(hidden, 0.0) * h[None, :], 1) * SCALE, float("-inf"))
        new = tl.maximum(largest, tl.max(s, 0))
        shrink, e = tl.exp(largest - new), tl.exp(s - new)
        total = total * shrink + tl.sum(e, 0)
        pooled = pooled * shrink + tl.sum(e * tl.sum(x * last[None, :], 1), 0)
        largest = new
    tl.store(y + row, pooled / total)


def attention(
    v: Tensor, first: Tensor, second: Tensor, attend: nn.Linear, score: Tensor, projection: Tensor, temperature: float
) -> Tensor:
    """AFM's pooled pairs: v (B, F, D) -> (B, 1)."""
    y, (rows, fields, dim) = v.new_empty(len(v), 1), v.shape
    sizes = {"F": fields, "D": dim, "A": attend.out_features, "SCALE": 1 / temperature, "PAIRS": PAIRS}
    sizes |= {"DW": max(16, triton.next_power_of_2(dim)), "AW": max(32, triton.next_power_of_2(attend.out_features))}
    weights = computed(attend.weight).contiguous(), attend.bias, score, projection
    _attention[(rows,)](v, first, second, *weights, y, len(first), num_stages=1, **sizes)
    return y
