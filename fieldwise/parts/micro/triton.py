"""PIN's and NIFM's micro networks on a GPU (Triton), without writing the pairs' inputs or hidden units to memory.

The formula is `MicroNetwork.forward` with two layers and the fused norm. For each row b and pair p = (i, j):

    x = [v_i, v_j, v_i * v_j, 1]         h = x W1_p, b1_p being W1_p's last row
    n = (h - mean_b) / std_b             over all pairs and units of the row
    o = 1 where gain n + shift > 0       r = o (gain n + shift)             z = r W2_p + b2_p

and, for PIN, a last norm of z (triton_last.py).

The norm needs all pairs of a row before any r, so that each of three passes computes h again: `_statistics` (sums of h
and h^2), `_outputs` (z) and `_gradients`. Arithmetic is cheaper here than memory, and h is never rounded: a rounded h
would open or close some units that the exact one does not. A program loads a pair's weights and goes through its rows.

The norm's gradient needs two more sums over all pairs of a row, of dn = gain o (dz W2^T) and of dn n. No pass over the
hidden units is needed for them if `_outputs` keeps e = (o gain) W2 and f = (o shift) W2, which are as small as z:

    sum of dn = sum of dz e              sum of dn n = sum of dz (z - b2 - f)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.loops.gpu import ROWS, padded
from fieldwise.loops.triton_pairs import fields_of, store_side, sum_sides, summed, vectors_of
from fieldwise.parts.micro.triton_last import last_norm, pulled
from fieldwise.parts.norm.norms import EPSILON

WALKS = 4  # programs that divide a pair's rows, where no gradient is summed over them


@triton.jit
def _matrix(
    w, pair, first, rows_in: tl.constexpr, rows, columns: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Rows first .. first + rows of matrix w[pair], (rows_in, columns), padded with zeros: (TALL, WIDE), as `dtype`."""
    k, n = tl.arange(0, TALL), tl.arange(0, WIDE)
    cells = (k < rows)[:, None] & (n < columns)[None, :]
    found = tl.load(w + pair * (rows_in * columns) + (first + k)[:, None] * columns + n[None, :], cells, 0.0)
    return found.to(dtype)


@triton.jit
def _first_weights(
    w1, b1, pair, K: tl.constexpr, H: tl.constexpr, KW: tl.constexpr, HW: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """W1 (K, H) with b1 as one more row, padded with zeros: (KW, HW), as `dtype`."""
    k, u = tl.arange(0, KW), tl.arange(0, HW)
    bias = tl.load(b1 + pair * H + u, u < H, 0.0).to(dtype)[None, :]
    return tl.where((k == K)[:, None], bias, _matrix(w1, pair, 0, K, K, H, KW, HW, dtype))


@triton.jit
def _tile(v, rows, i, j, B, D: tl.constexpr, K: tl.constexpr, KW: tl.constexpr):
    """x of a tile of rows, padded with zeros: (ROWS, KW)."""
    k = tl.arange(0, KW)
    inside = (rows < B)[:, None]
    one, two = i * B * D, j * B * D
    place = k + tl.where(k < D, one, tl.where(k < 2 * D, two - D, one - 2 * D))
    x = tl.load(v + rows[:, None] * D + place[None, :], inside & (k < K)[None, :], 0.0)
    if K > 2 * D:
        both = inside & ((k >= 2 * D) & (k < K))[None, :]
        x *= tl.load(v + two - 2 * D + rows[:, None] * D + k[None, :], both, 1.0)
    return tl.where(inside & (k == K)[None, :], 1.0, x).to(v.dtype.element_ty)


@triton.jit
def _means(sums, rows, B, COUNT: tl.constexpr):
    """Two sums of each row, (2, B), over COUNT units, as means."""
    one, two = tl.load(sums + rows, rows < B, 0.0), tl.load(sums + B + rows, rows < B, 0.0)
    return (one * (1.0 / COUNT))[:, None], (two * (1.0 / COUNT))[:, None]


@triton.jit
def _norm(sums, rows, B, COUNT: tl.constexpr, EPS: tl.constexpr):
    """Mean and 1 / std of each row; `sums` (2, B) are the sums of h and h^2 over COUNT units."""
    mean, square = _means(sums, rows, B, COUNT)
    return mean, tl.rsqrt(tl.maximum(square - mean * mean, 0.0) + EPS)


@triton.jit
def _gain_and_shift(gain, shift, pair, H: tl.constexpr, OWN: tl.constexpr, HW: tl.constexpr):
    """Gain and shift of the pair's units; padding units, which have no weights, are always open."""
    u = tl.arange(0, HW)
    at = (pair * H if OWN else 0) + u
    return tl.load(gain + at, u < H, 0.0), tl.load(shift + at, u < H, 1.0)


@triton.jit
def _statistics(
    v, w1, b1, first, second, parts, B,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, ROWS: tl.constexpr, KW: tl.constexpr, HW: tl.constexpr,
    WALKS: tl.constexpr,
):  # fmt: skip
    """parts[pair] (2, B) = sums of h and of h^2 over the pair's units."""
    pair = tl.program_id(0)
    i, j = fields_of(first, second, pair)
    w = _first_weights(w1, b1, pair, K, H, KW, HW, v.dtype.element_ty)
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        h = tl.dot(_tile(v, rows, i, j, B, D, K, KW), w, input_precision="tf32x3")
        into = parts + pair.to(tl.int64) * 2 * B + rows
        tl.store(into, tl.sum(h, 1), rows < B)
        tl.store(into + B, tl.sum(h * h, 1), rows < B)


@triton.jit
def _outputs(
    v, w1, b1, gain, shift, w2, b2, first, second, sums, z, opened, B,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, OWN: tl.constexpr,
    EPS: tl.constexpr, ROWS: tl.constexpr, KW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr, OP: tl.constexpr,
    WALKS: tl.constexpr, GRADIENTS: tl.constexpr,
):  # fmt: skip
    """z[rows, pair], and for gradients opened[pair, rows] = e, then f, each in OP numbers."""
    pair, o, u = tl.program_id(0), tl.arange(0, OW), tl.arange(0, HW)
    i, j = fields_of(first, second, pair)
    w = _first_weights(w1, b1, pair, K, H, KW, HW, v.dtype.element_ty)
    g, s = _gain_and_shift(gain, shift, pair, H, OWN, HW)
    second_weights = _matrix(w2, pair, 0, H, H, O, HW, OW, v.dtype.element_ty)
    bias = tl.load(b2 + pair * O + o, o < O, 0.0).to(tl.float32)[None, :]
    cells = (u < H)[:, None] & ((o % OP < O) & (o < 2 * OP))[None, :]
    twice = tl.load(w2 + pair * (H * O) + u[:, None] * O + (o % OP)[None, :], cells, 0.0).to(second_weights.dtype)
    twice = (twice * tl.where((o < OP)[None, :], g[:, None], s[:, None])).to(second_weights.dtype)
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        x = _tile(v, rows, i, j, B, D, K, KW)
        mean, inverse = _norm(sums, rows, B, P * H, EPS)
        h = tl.dot(x, w, input_precision="tf32x3")
        a = g[None, :] * ((h - mean) * inverse) + s[None, :]
        found = tl.dot(tl.maximum(a, 0.0).to(w.dtype), second_weights, input_precision="tf32x3") + bias
        at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
        tl.store(z + at, found.to(z.dtype.element_ty), (rows < B)[:, None] & (o < O)[None, :])
        if GRADIENTS:
            both = tl.dot((a > 0).to(w.dtype), twice, input_precision="tf32x3")
            into = opened + pair.to(tl.int64) * B * (2 * OP) + rows[:, None] * (2 * OP) + o[None, :]
            tl.store(into, both.to(z.dtype.element_ty), (rows < B)[:, None] & (o < 2 * OP)[None, :])


@triton.jit
def _pull_of(dz, rows, B, OP: tl.constexpr, OW: tl.constexpr):
    """dz of a tile of rows, padded with zeros: (ROWS, OW)."""
    o = tl.arange(0, OW)
    return tl.load(dz + rows[:, None] * OP + o[None, :], (rows < B)[:, None] & (o < OP)[None, :], 0.0)


@triton.jit
def _gradients(
    v, w1, b1, gain, shift, w2, first, second, sums, pulls, dz, sides, dw1, db1, dnorm, dw2, db2, B,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, OWN: tl.constexpr,
    EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, KW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
    OP: tl.constexpr,
):  # fmt: skip
    """dh = (dn - mean(dn) - n mean(dn n)) / std, means over the row; dx = dh W1^T; dW1 = x^T dh, db1 its last row.

    With N = (o n)^T dz and Z = o^T dz, sums over rows: dW2 = gain N + shift Z; dgain and dshift, in dnorm, are the sums
    over outputs of W2 N and of W2 Z; db2 is Z's row of a unit that is always open. dz is (P, B, OP).
    """
    pair, u, o = tl.program_id(0), tl.arange(0, HW), tl.arange(0, OW)
    i, j = fields_of(first, second, pair)
    w = _first_weights(w1, b1, pair, K, H, KW, HW, v.dtype.element_ty)
    one = _matrix(w1, pair, 0, K, D, H, DW, HW, v.dtype.element_ty)
    two = _matrix(w1, pair, D, K, D, H, DW, HW, v.dtype.element_ty)
    three = two
    if K > 2 * D:
        three = _matrix(w1, pair, 2 * D, K, D, H, DW, HW, v.dtype.element_ty)
    g, s = _gain_and_shift(gain, shift, pair, H, OWN, HW)
    back = tl.trans(_matrix(w2, pair, 0, H, H, O, HW, OW, v.dtype.element_ty))
    dz += pair.to(tl.int64) * B * OP
    # Transposed, (H, K): a warp group multiplies tiles of 64 rows, not of 32.
    for_w1 = tl.zeros((HW, KW), tl.float32)
    by_n, by_o = tl.zeros((HW, OW), tl.float32), tl.zeros((HW, OW), tl.float32)
    for start in range(0, B, ROWS):
        rows = start + tl.arange(0, ROWS)
        # All loads first, so that they run at the same time.
        x, pull = _tile(v, rows, i, j, B, D, K, KW), _pull_of(dz, rows, B, OP, OW)
        mean, inverse = _norm(sums, rows, B, P * H, EPS)
        mean1, mean2 = _means(pulls, rows, B, P * H)
        p, q = vectors_of(v, rows, i, B, D, DW), vectors_of(v, rows, j, B, D, DW)
        n = (tl.dot(x, w, input_precision="ieee") - mean) * inverse
        opened = g[None, :] * n + s[None, :] > 0
        by_n = tl.dot(tl.trans(tl.where(opened, n, 0.0).to(w.dtype)), pull, by_n, input_precision="ieee")
        by_o = tl.dot(tl.trans(opened.to(w.dtype)), pull, by_o, input_precision="ieee")
        dn = tl.where(opened, tl.dot(pull, back, input_precision="ieee"), 0.0) * g[None, :]
        dh = ((dn - mean1 - n * mean2) * inverse).to(w.dtype)
        for_w1 = tl.dot(tl.trans(dh), x, for_w1, input_precision="ieee")
        dp = tl.dot(dh, tl.trans(one), input_precision="ieee")
        dq = tl.dot(dh, tl.trans(two), input_precision="ieee")
        if K > 2 * D:
            both = tl.dot(dh, tl.trans(three), input_precision="ieee")
            dp += both * q.to(tl.float32)
            dq += both * p.to(tl.float32)
        store_side(sides, dp, pair, 0, rows, B, D, DW)
        store_side(sides, dq, pair, 1, rows, B, D, DW)
    k, units, outputs = tl.arange(0, KW)[None, :], (u < H)[:, None], (o < O)[None, :]
    tl.store(dw1 + pair * (K * H) + k * H + u[:, None], for_w1.to(dw1.dtype.element_ty), units & (k < K))
    tl.store(db1 + pair * H + 0 * k + u[:, None], for_w1.to(db1.dtype.element_ty), units & (k == K))
    for_w2 = g[:, None] * by_n + s[:, None] * by_o
    tl.store(dw2 + pair * (H * O) + u[:, None] * O + o[None, :], for_w2.to(dw2.dtype.element_ty), units & outputs)
    tl.store(db2 + pair * O + 0 * u[:, None] + o[None, :], by_o.to(db2.dtype.element_ty), (u == H)[:, None] & outputs)
    weights = tl.trans(back).to(tl.float32)
    tl.store(dnorm + pair * 2 * H + u, tl.sum(by_n * weights, 1), u < H)
    tl.store(dnorm + pair * 2 * H + H + u, tl.sum(by_o * weights, 1), u < H)


def _sizes(v: Tensor, w1: Tensor, w2: Tensor, gain: Tensor) -> dict[str, Any]:
    """The sizes that the kernels are compiled for; v is (F, B, D)."""
    dim, (pairs, inputs, hidden), outputs = v.shape[2], w1.shape, w2.shape[2]
    sizes = {"D": dim, "K": inputs, "H": hidden, "O": outputs, "P": pairs}
    sizes |= {"DW": padded(dim), "KW": padded(inputs + 1), "HW": padded(hidden + 1), "OP": padded(outputs, 1)}
    # A tile of 16 outputs made Triton 3.6 address shared memory out of range on an H200.
    sizes["OW"] = max(32, 2 * sizes["OP"])
    return sizes | {"OWN": gain.shape[0] > 1, "EPS": EPSILON, "ROWS": ROWS}


def _only(sizes: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {name: size for name, size in sizes.items() if name not in left_out}


@torch.library.custom_op("fieldwise::micro", mutates_args=())
def micro(
    v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor, last_gain: Tensor | None,
    last_shift: Tensor | None, first: Tensor, second: Tensor, wide: int, gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Features: z (B, P, O), or with a last norm its y (B, wide), padded with zeros; and, only for gradients, z, the
    norms' sums, e and f, and w1 rounded.

    v (F, B, D); weights (P, in, out), which go into products in v's dtype; gains and shifts (1 or P, 1, H), and the
    last ones (1, 1, O). All are contiguous, and float32 but for v.
    """
    sizes, rows, pairs = _sizes(v, w1, w2, gain), v.shape[1], len(w1)
    rounded = w1.new_empty(0) if w1.dtype == v.dtype else w1.to(v.dtype)
    w1 = w1 if w1.dtype == v.dtype else rounded  # many programs read it, and each would round it again
    z, opened = v.new_empty(rows, pairs, w2.shape[2]), v.new_empty(_opened(rows, w2, gradients))
    parts = torch.empty(pairs, 2, rows, device=v.device)
    grid, own = (pairs, WALKS), _only(sizes, "O", "P", "OWN", "EPS", "DW", "OW", "OP")
    _statistics[grid](v, w1, b1, first, second, parts, rows, WALKS=WALKS, num_stages=1, **own)
    sums = summed(parts)
    given = v, w1, b1, gain, shift, w2, b2, first, second, sums
    shared = {"WALKS": WALKS, "GRADIENTS": gradients, "num_stages": 1}
    _outputs[grid](*given, z, opened, rows, **shared, **_only(sizes, "DW"))
    if last_gain is None or last_shift is None:
        return z, z.new_empty(0), sums, sums.new_empty(0), opened, rounded
    y, norm = last_norm(z, last_gain, last_shift, EPSILON, wide)
    return y, z, sums, norm, opened, rounded


def _opened(rows: int, w2: Tensor, gradients: bool) -> tuple[int, ...]:
    """The shape of e and f."""
    return (len(w2), rows, 2, padded(w2.shape[2], 1)) if gradients else (0,)


@torch.library.custom_op("fieldwise::micro_backward", mutates_args=())
def micro_backward(
    dy: Tensor, v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor,
    last_gain: Tensor | None, first: Tensor, second: Tensor, z: Tensor, sums: Tensor, norm: Tensor, opened: Tensor,
    rounded: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of v, w1, b1, gain and shift (2, 1 or P, 1, H), w2, b2, and of the last gain and shift (2, O)."""
    sizes, pairs = _sizes(v, w1, w2, gain), len(w1)
    dz, pulls, dlast = pulled(dy, z, opened, b2, None if last_gain is None else (last_gain, norm))
    dw1, db1, dw2, db2 = (torch.empty_like(each) for each in (w1, b1, w2, b2))
    dnorm, sides = torch.empty(pairs, 2, w1.shape[2], device=v.device), v.new_empty(pairs, 2, *v.shape[1:])
    given = v, rounded if rounded.numel() else w1, b1, gain, shift, w2, first, second, sums, pulls, dz
    _gradients[(pairs,)](*given, sides, dw1, db1, dnorm, dw2, db2, v.shape[1], num_stages=1, **sizes)
    dnorm = dnorm.transpose(0, 1) if sizes["OWN"] else summed(dnorm)[:, None]
    return sum_sides(sides, v), dw1, db1, dnorm[:, :, None].contiguous(), dw2, db2, dlast


@micro.register_fake
def _(
    v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor, last_gain: Tensor | None,
    last_shift: Tensor | None, first: Tensor, second: Tensor, wide: int, gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows, last = v.shape[1], last_gain is not None
    z, opened = v.new_empty(rows, len(w1), w2.shape[2]), v.new_empty(_opened(rows, w2, gradients))
    sums = gain.new_empty(2, rows)
    rounded = w1.new_empty(0 if w1.dtype == v.dtype else w1.shape, dtype=v.dtype)
    norm = sums.new_empty(sums.shape if last else 0)
    if not last:
        return z, z.new_empty(0), sums, norm, opened, rounded
    return z.new_empty(rows, wide), z, sums, norm, opened, rounded


@micro_backward.register_fake
def _(
    dy: Tensor, v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor,
    last_gain: Tensor | None, first: Tensor, second: Tensor, z: Tensor, sums: Tensor, norm: Tensor, opened: Tensor,
    rounded: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dv, dw1, db1, dw2, db2 = (torch.empty_like(each) for each in (v, w1, b1, w2, b2))
    return dv, dw1, db1, gain.new_empty(2, *gain.shape), dw2, db2, gain.new_empty(2, w2.shape[2])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # callers use only the first output
    y, z, *others = output
    ctx.last = inputs[7] is not None
    ctx.save_for_backward(*inputs[:7], inputs[7], *inputs[9:11], z if ctx.last else y, *others)


def _backward(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 13
    dv, dw1, db1, dnorm, dw2, db2, dlast = micro_backward(dy.contiguous(), *ctx.saved_tensors)
    last = (dlast[0].view(1, 1, -1), dlast[1].view(1, 1, -1)) if ctx.last else (None, None)
    return dv, dw1, db1, dnorm[0], dnorm[1], dw2, db2, *last, None, None, None, None


micro.register_autograd(_backward, setup_context=_remember)
