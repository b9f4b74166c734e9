"""What only scores need on a GPU (Triton), without gradients: a DNN's layers, FM's and FFM's products, AFM's attention.

Training gets such fusions from torch's compiler; scores should not wait for one. Plain versions: nn.classifiers.DNN,
nn.interactions.PairSum and FieldAwareProduct, and AttentionPool.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.loops.gpu import computed

PAIRS = 64  # of a tile
FIELDS = 8  # of a tile of vectors


@triton.jit
def _norm_relu(x, gain, shift, y, W: tl.constexpr, S: tl.constexpr, EPS: tl.constexpr, WIDE: tl.constexpr):
    """y = relu(gain (x - mean) / std + shift) over the first W of each row's S numbers; the others become 0."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    values = tl.load(x + row * S + k, k < W, 0.0).to(tl.float32)
    centred = tl.where(k < W, values - tl.sum(values, 0) * (1.0 / W), 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) * (1.0 / W) + EPS)
    scaled = centred * inverse * tl.load(gain + k, k < W, 0.0) + tl.load(shift + k, k < W, 0.0)
    tl.store(y + row * S + k, tl.maximum(scaled, 0.0).to(y.dtype.element_ty), k < S)


def layers(x: Tensor, hidden: Sequence[tuple[nn.Linear, nn.LayerNorm]], last: nn.Linear) -> Tensor:
    """Logits (B,) of a DNN of affine layers, each with layer norm and ReLU, and a last one: x (B, width).

    Rows are padded to multiples of 16 bytes: products of others take three times as long.
    """
    x = _padded(computed(x))
    for affine, norm in hidden:
        x = functional.linear(x, _padded(computed(affine.weight), rows=True), _padded(computed(affine.bias)))
        y, width, stride = torch.empty_like(x), affine.out_features, x.shape[1]
        sizes = {"W": width, "S": stride, "EPS": norm.eps, "WIDE": triton.next_power_of_2(stride)}
        _norm_relu[(len(x),)](x, norm.weight, norm.bias, y, **sizes)
        x = y
    return functional.linear(x, _padded(computed(last.weight)), computed(last.bias)).squeeze(1)


def _padded(values: Tensor, rows: bool = False) -> Tensor:
    """Zeros behind the last axis, and for matrices below the first too, up to a multiple of 8."""
    missing = -values.shape[-1] % 8, -values.shape[0] % 8 if rows else 0
    return functional.pad(values, (0, missing[0], 0, missing[1]) if values.dim() > 1 else (0, missing[0]))


@triton.jit
def _pair_sums(v, y, F: tl.constexpr, D: tl.constexpr, FIELDS: tl.constexpr, DW: tl.constexpr):
    """y[row] = (|sum of v_f|^2 - sum of |v_f|^2) / 2, over the row's fields f: one pass over its vectors."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, DW)[None, :]
    total, squares = tl.zeros((FIELDS, DW), tl.float32), tl.zeros((FIELDS, DW), tl.float32)
    for start in tl.range(0, F, FIELDS, loop_unroll_factor=5):  # five loads under way at a time
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


@triton.jit
def _attention(
    v, first, second, weight, bias, score, projection, y, P,
    F: tl.constexpr, D: tl.constexpr, A: tl.constexpr, SCALE: tl.constexpr, PAIRS: tl.constexpr, DW: tl.constexpr,
    AW: tl.constexpr,
):  # fmt: skip
    """x_p = v_i * v_j, s_p = SCALE score . relu(W x_p + b), y[row] = sum over p of softmax(s)_p (projection . x_p).

    The softmax goes along: exp(s - largest so far), and what was summed before shrinks when a larger one comes.
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
