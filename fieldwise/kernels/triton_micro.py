"""PIN's and NIFM's micro networks on a GPU (Triton): no pair's input or hidden units ever lie in memory.

Plain version: nn.interactions.MicroNetwork with two layers and the fused norm. For each row b and pair p = (i, j):

    x = [v_i, v_j, v_i * v_j]            h = x W1_p + b1_p
    n = (h - mean_b) / std_b             over all pairs and units of the row
    r = relu(gain n + shift)             z = r W2_p + b2_p

The norm needs all pairs of a row before any r, so h is made anew in each of four passes: `_statistics` (sums of h and
h^2), `_outputs` (z), and backwards `_pulls` (the norm's two sums, gradients of W2, b2, gain, shift) and `_inputs`
(gradients of x, W1, b1). Arithmetic is cheaper here than memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.kernels.triton_pairs import ROWS, store_side, sum_sides, vectors_of
from fieldwise.nn.norms import EPSILON

SPLITS = 2  # programs that share a pair's rows where weights' gradients are summed


@triton.jit
def _matrix(w, pair, first, rows_in: tl.constexpr, rows, columns: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Rows first .. first + rows of matrix w[pair], (rows_in, columns), zeros around: (TALL, WIDE)."""
    k, n = tl.arange(0, TALL), tl.arange(0, WIDE)
    cells = (k < rows)[:, None] & (n < columns)[None, :]
    return tl.load(w + pair * (rows_in * columns) + (first + k)[:, None] * columns + n[None, :], cells, 0.0)


@triton.jit
def _store_matrix(
    w, values, pair, first, rows_in: tl.constexpr, rows, columns: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr
):
    k, n = tl.arange(0, TALL), tl.arange(0, WIDE)
    cells = (k < rows)[:, None] & (n < columns)[None, :]
    tl.store(w + pair * (rows_in * columns) + (first + k)[:, None] * columns + n[None, :], values, cells)


@triton.jit
def _hidden(
    p, q, w1, b1, pair, D: tl.constexpr, H: tl.constexpr, INPUTS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """h of a tile of rows: (ROWS, HW), zeros behind H."""
    u = tl.arange(0, HW)
    h = tl.dot(p, _matrix(w1, pair, 0, INPUTS * D, D, H, DW, HW), input_precision=PRECISION)
    h = tl.dot(q, _matrix(w1, pair, D, INPUTS * D, D, H, DW, HW), h, input_precision=PRECISION)
    if INPUTS == 3:
        h = tl.dot(p * q, _matrix(w1, pair, 2 * D, INPUTS * D, D, H, DW, HW), h, input_precision=PRECISION)
    return h + tl.load(b1 + pair * H + u, u < H, 0.0).to(tl.float32)[None, :]


@triton.jit
def _normal(h, sums, rows, B, COUNT: tl.constexpr, EPS: tl.constexpr):
    """n, and 1 / std of each row; `sums` (2, B) are those of h and h^2 over COUNT units."""
    mean = tl.load(sums + rows, rows < B, 0.0) / COUNT
    variance = tl.load(sums + B + rows, rows < B, 0.0) / COUNT - mean * mean
    inverse = 1 / tl.sqrt(tl.maximum(variance, 0.0) + EPS)
    return (h - mean[:, None]) * inverse[:, None], inverse


@triton.jit
def _scaled(n, gain, shift, pair, H: tl.constexpr, OWN: tl.constexpr, HW: tl.constexpr):
    """gain n + shift, and gain; zeros behind H."""
    u = tl.arange(0, HW)
    at = (pair * H if OWN else 0) + u
    g = tl.load(gain + at, u < H, 0.0)[None, :]
    return g * n + tl.load(shift + at, u < H, 0.0)[None, :], g


@triton.jit
def _statistics(
    v, w1, b1, first, second, parts, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr,
    HW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """parts[pair] (2, B) = sums of h and of h^2 over the pair's units."""
    pair, rows = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    p = vectors_of(v, rows, tl.load(first + pair), B, F, D, DW)
    q = vectors_of(v, rows, tl.load(second + pair), B, F, D, DW)
    h = _hidden(p, q, w1, b1, pair, D, H, INPUTS, DW, HW, PRECISION)
    tl.store(parts + pair * 2 * B + rows, tl.sum(h, 1), rows < B)
    tl.store(parts + (pair * 2 + 1) * B + rows, tl.sum(h * h, 1), rows < B)


@triton.jit
def _outputs(
    v, w1, b1, gain, shift, w2, b2, first, second, sums, z, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """z[rows, pair]."""
    pair, rows = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    p = vectors_of(v, rows, tl.load(first + pair), B, F, D, DW)
    q = vectors_of(v, rows, tl.load(second + pair), B, F, D, DW)
    h = _hidden(p, q, w1, b1, pair, D, H, INPUTS, DW, HW, PRECISION)
    n, _ = _normal(h, sums, rows, B, P * H, EPS)
    a, _ = _scaled(n, gain, shift, pair, H, OWN, HW)
    r = tl.maximum(a, 0.0).to(v.dtype.element_ty)
    o = tl.arange(0, OW)
    found = tl.dot(r, _matrix(w2, pair, 0, H, H, O, HW, OW), input_precision=PRECISION)
    found += tl.load(b2 + pair * O + o, o < O, 0.0).to(tl.float32)[None, :]
    at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
    tl.store(z + at, found.to(z.dtype.element_ty), (rows < B)[:, None] & (o < O)[None, :])


@triton.jit
def _pulled(
    p, q, v, w1, b1, gain, shift, w2, sums, dz, pair, rows, B,
    D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr, OWN: tl.constexpr,
    EPS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What both backward passes begin with: n, 1 / std, r, dz's tile, d(gain n + shift), and gain times that, d n."""
    h = _hidden(p, q, w1, b1, pair, D, H, INPUTS, DW, HW, PRECISION)
    n, inverse = _normal(h, sums, rows, B, P * H, EPS)
    a, g = _scaled(n, gain, shift, pair, H, OWN, HW)
    o = tl.arange(0, OW)
    at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
    pull = tl.load(dz + at, (rows < B)[:, None] & (o < O)[None, :], 0.0)
    dr = tl.dot(pull, tl.trans(_matrix(w2, pair, 0, H, H, O, HW, OW)), input_precision=PRECISION)
    da = tl.where(a > 0, dr, 0.0)
    return n, inverse, tl.maximum(a, 0.0).to(v.dtype.element_ty), pull, da, da * g


@triton.jit
def _pulls(
    v, w1, b1, gain, shift, w2, first, second, sums, dz, parts, dw2, db2, dgain, dshift, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
    PRECISION: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """parts[pair] (2, B) = sums of dn and of dn n over the pair's units; gradients of W2, b2, gain, shift by split."""
    pair, split = tl.program_id(0), tl.program_id(1)
    i, j = tl.load(first + pair), tl.load(second + pair)
    for_w2, for_b2 = tl.zeros((HW, OW), tl.float32), tl.zeros((OW,), tl.float32)
    for_gain, for_shift = tl.zeros((HW,), tl.float32), tl.zeros((HW,), tl.float32)
    for start in range(split * ROWS, B, SPLITS * ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, F, D, DW), vectors_of(v, rows, j, B, F, D, DW)
        n, _, r, pull, da, dn = _pulled(
            p, q, v, w1, b1, gain, shift, w2, sums, dz, pair, rows, B,
            D, H, O, P, INPUTS, OWN, EPS, DW, HW, OW, PRECISION,
        )  # fmt: skip
        tl.store(parts + pair * 2 * B + rows, tl.sum(dn, 1), rows < B)
        tl.store(parts + (pair * 2 + 1) * B + rows, tl.sum(dn * n, 1), rows < B)
        for_w2 = tl.dot(tl.trans(r), pull, for_w2, input_precision=PRECISION)
        for_b2 += tl.sum(pull.to(tl.float32), 0)
        for_gain += tl.sum(da * n, 0)
        for_shift += tl.sum(da, 0)
    u, o, place = tl.arange(0, HW), tl.arange(0, OW), split * P + pair
    _store_matrix(dw2, for_w2, place, 0, H, H, O, HW, OW)
    tl.store(db2 + place * O + o, for_b2, o < O)
    tl.store(dgain + place * H + u, for_gain, u < H)
    tl.store(dshift + place * H + u, for_shift, u < H)


@triton.jit
def _inputs(
    v, w1, b1, gain, shift, w2, first, second, sums, pulls, dz, sides, dw1, db1, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
    PRECISION: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """dh = (dn - mean(dn) - n mean(dn n)) / std, means over the row; dx = dh W1^T; dW1 = x^T dh; db1 = sum dh."""
    pair, split = tl.program_id(0), tl.program_id(1)
    i, j, u = tl.load(first + pair), tl.load(second + pair), tl.arange(0, HW)
    one, two = tl.zeros((DW, HW), tl.float32), tl.zeros((DW, HW), tl.float32)
    three, for_b1 = tl.zeros((DW, HW), tl.float32), tl.zeros((HW,), tl.float32)
    for start in range(split * ROWS, B, SPLITS * ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, F, D, DW), vectors_of(v, rows, j, B, F, D, DW)
        n, inverse, _, _, _, dn = _pulled(
            p, q, v, w1, b1, gain, shift, w2, sums, dz, pair, rows, B,
            D, H, O, P, INPUTS, OWN, EPS, DW, HW, OW, PRECISION,
        )  # fmt: skip
        mean1 = tl.load(pulls + rows, rows < B, 0.0) / (P * H)
        mean2 = tl.load(pulls + B + rows, rows < B, 0.0) / (P * H)
        dh = (dn - mean1[:, None] - n * mean2[:, None]) * inverse[:, None]
        dh = tl.where((rows < B)[:, None] & (u < H)[None, :], dh, 0.0)
        for_b1 += tl.sum(dh, 0)
        pull = dh.to(v.dtype.element_ty)
        dp = tl.dot(pull, tl.trans(_matrix(w1, pair, 0, INPUTS * D, D, H, DW, HW)), input_precision=PRECISION)
        dq = tl.dot(pull, tl.trans(_matrix(w1, pair, D, INPUTS * D, D, H, DW, HW)), input_precision=PRECISION)
        one = tl.dot(tl.trans(p), pull, one, input_precision=PRECISION)
        two = tl.dot(tl.trans(q), pull, two, input_precision=PRECISION)
        if INPUTS == 3:
            both = tl.dot(pull, tl.trans(_matrix(w1, pair, 2 * D, INPUTS * D, D, H, DW, HW)), input_precision=PRECISION)
            dp += both * q.to(tl.float32)
            dq += both * p.to(tl.float32)
            three = tl.dot(tl.trans(p * q), pull, three, input_precision=PRECISION)
        store_side(sides, dp, pair, 0, rows, B, D, DW)
        store_side(sides, dq, pair, 1, rows, B, D, DW)
    place = split * P + pair
    _store_matrix(dw1, one, place, 0, INPUTS * D, D, H, DW, HW)
    _store_matrix(dw1, two, place, D, INPUTS * D, D, H, DW, HW)
    if INPUTS == 3:
        _store_matrix(dw1, three, place, 2 * D, INPUTS * D, D, H, DW, HW)
    tl.store(db1 + place * H + u, for_b1, u < H)


def _shape(v: Tensor, w1: Tensor, w2: Tensor, gain: Tensor) -> dict[str, Any]:
    """The sizes that the kernels are made for."""
    (_, fields, dim), (pairs, inputs, hidden) = v.shape, w1.shape
    wide = [max(16, triton.next_power_of_2(size)) for size in (dim, hidden, w2.shape[2])]
    sizes = {"F": fields, "D": dim, "H": hidden, "O": w2.shape[2], "P": pairs, "INPUTS": inputs // dim}
    sizes |= {"OWN": gain.shape[0] > 1, "EPS": EPSILON, "ROWS": ROWS}
    return sizes | dict(zip(("DW", "HW", "OW"), wide, strict=True)) | {"PRECISION": "ieee"}


@torch.library.custom_op("fieldwise::micro", mutates_args=())
def micro(
    v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    """z (B, P, O), and the norm's sums (2, B): v (B, F, D), weights (P, in, out), all contiguous and of one dtype but
    gain and shift (1 or P, 1, H), which are float32."""
    sizes, rows, pairs = _shape(v, w1, w2, gain), len(v), len(w1)
    grid = (pairs, triton.cdiv(rows, ROWS))
    parts = torch.empty(pairs, 2, rows, device=v.device)
    hidden = {key: sizes[key] for key in ("F", "D", "H", "INPUTS", "ROWS", "DW", "HW", "PRECISION")}
    _statistics[grid](v, w1, b1, first, second, parts, rows, **hidden)
    sums = parts.sum(0)
    z = torch.empty(rows, pairs, w2.shape[2], dtype=v.dtype, device=v.device)
    _outputs[grid](v, w1, b1, gain, shift, w2, b2, first, second, sums, z, rows, **sizes)
    return z, sums


@torch.library.custom_op("fieldwise::micro_backward", mutates_args=())
def micro_backward(
    dz: Tensor, v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, first: Tensor,
    second: Tensor, sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of v, w1, b1, gain, shift, w2, b2."""
    sizes, rows, (pairs, inputs, hidden), out = _shape(v, w1, w2, gain), len(v), w1.shape, w2.shape[2]
    grid, given = (pairs, SPLITS), (v, w1, b1, gain, shift, w2, first, second, sums)

    def by_split(*shape: int) -> Tensor:
        return torch.empty(SPLITS, pairs, *shape, device=v.device)

    parts, dw2, db2 = torch.empty(pairs, 2, rows, device=v.device), by_split(hidden, out), by_split(1, out)
    dgain, dshift, dw1, db1 = by_split(1, hidden), by_split(1, hidden), by_split(inputs, hidden), by_split(1, hidden)
    _pulls[grid](*given, dz, parts, dw2, db2, dgain, dshift, rows, SPLITS=SPLITS, **sizes)
    sides = torch.empty(pairs, 2, rows, v.shape[2], dtype=v.dtype, device=v.device)
    _inputs[grid](*given, parts.sum(0), dz, sides, dw1, db1, rows, SPLITS=SPLITS, num_warps=8, **sizes)
    norms = [values.sum(0) if sizes["OWN"] else values.sum((0, 1))[None] for values in (dgain, dshift)]
    weights = [values.sum(0).to(v.dtype) for values in (dw1, db1, dw2, db2)]
    return sum_sides(sides, v), weights[0], weights[1], norms[0], norms[1], weights[2], weights[3]


@micro.register_fake
def _(
    v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    return v.new_empty(len(v), len(w1), w2.shape[2]), gain.new_empty(2, len(v))


@micro_backward.register_fake
def _(
    dz: Tensor, v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, first: Tensor,
    second: Tensor, sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    b2 = w2.new_empty(len(w2), 1, w2.shape[2])
    found = [torch.empty_like(each) for each in (v, w1, b1, gain, shift, w2, b2)]
    return found[0], found[1], found[2], found[3], found[4], found[5], found[6]


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    v, w1, b1, gain, shift, w2, _, first, second = inputs
    ctx.save_for_backward(v, w1, b1, gain, shift, w2, first, second, output[1])


def _backward(ctx: Any, dz: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*micro_backward(dz.contiguous(), *ctx.saved_tensors), None, None)


micro.register_autograd(_backward, setup_context=_remember)
