"""PIN's and NIFM's micro networks on a GPU (Triton): no pair's input ever lies in memory, its hidden units once.

Plain version: nn.interactions.MicroNetwork with two layers and the fused norm. For each row b and pair p = (i, j):

    x = [v_i, v_j, v_i * v_j]            h = x W1_p + b1_p
    n = (h - mean_b) / std_b             over all pairs and units of the row
    r = relu(gain n + shift)             z = r W2_p + b2_p

The norm needs all pairs of a row before any r. So there are four passes: `_first` (h, and its sums for the norm),
`_second` (z), and backwards `_pulls` (the norm's two sums; gradients of W2, b2, gain, shift) and `_inputs` (gradients
of x, W1, b1). A program walks over a pair's rows with the pair's weights at hand.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.kernels.triton_pairs import ROWS, store_side, sum_sides, vectors_of
from fieldwise.nn.norms import EPSILON

WALKS = 4  # programs that share a pair's rows
SPLITS = 2  # the same where weights' gradients are summed


@triton.jit
def _matrix(w, pair, first, rows_in: tl.constexpr, rows, columns: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Rows first .. first + rows of matrix w[pair], (rows_in, columns), zeros around: (TALL, WIDE)."""
    k, n = tl.arange(0, TALL), tl.arange(0, WIDE)
    cells = (k < rows)[:, None] & (n < columns)[None, :]
    return tl.load(w + pair * (rows_in * columns) + (first + k)[:, None] * columns + n[None, :], cells, 0.0)


@triton.jit
def _store_matrix(w, values, pair, rows: tl.constexpr, columns: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr):
    k, n = tl.arange(0, TALL), tl.arange(0, WIDE)
    cells = (k < rows)[:, None] & (n < columns)[None, :]
    tl.store(w + pair * (rows * columns) + k[:, None] * columns + n[None, :], values, cells)


@triton.jit
def _tile(values, pair, rows, B, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """values[pair, rows] of (P, B, WIDTH), zeros around: (ROWS, WIDE)."""
    c = tl.arange(0, WIDE)
    at = (pair.to(tl.int64) * B + rows)[:, None] * WIDTH + c[None, :]
    return tl.load(values + at, (rows < B)[:, None] & (c < WIDTH)[None, :], 0.0)


@triton.jit
def _input(v, rows, i, j, B, F: tl.constexpr, D: tl.constexpr, INPUTS: tl.constexpr, IW: tl.constexpr):
    """x = [v_i, v_j, v_i * v_j], zeros behind: (ROWS, IW)."""
    c = tl.arange(0, IW)
    part, d = c // D, c % D
    here = (rows < B)[:, None] & (c < INPUTS * D)[None, :]
    at = rows[:, None] * (F * D) + (tl.where(part == 1, j, i) * D + d)[None, :]
    x = tl.load(v + at, here, 0.0)
    if INPUTS == 3:
        other = rows[:, None] * (F * D) + (j * D + d)[None, :]
        x *= tl.load(v + other, here & (part == 2)[None, :], 1.0)
    return x


@triton.jit
def _normal(h, sums, rows, B, COUNT: tl.constexpr, EPS: tl.constexpr):
    """n, and 1 / std of each row; `sums` (2, B) are those of h and h^2 over COUNT units."""
    mean = tl.load(sums + rows, rows < B, 0.0) / COUNT
    variance = tl.load(sums + B + rows, rows < B, 0.0) / COUNT - mean * mean
    inverse = 1 / tl.sqrt(tl.maximum(variance, 0.0) + EPS)
    return (h.to(tl.float32) - mean[:, None]) * inverse[:, None], inverse


@triton.jit
def _first(
    v, w1, b1, first, second, h, parts, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, IW: tl.constexpr,
    HW: tl.constexpr, WALKS: tl.constexpr,
):  # fmt: skip
    """h[pair] (B, H), and parts[pair] (2, B) = sums of h and of h^2 over the pair's units."""
    pair, u = tl.program_id(0), tl.arange(0, HW)
    i, j = tl.load(first + pair), tl.load(second + pair)
    w = _matrix(w1, pair, 0, INPUTS * D, INPUTS * D, H, IW, HW)
    bias = tl.load(b1 + pair * H + u, u < H, 0.0).to(tl.float32)[None, :]
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        x = _input(v, rows, i, j, B, F, D, INPUTS, IW)
        found = (tl.dot(x, w, input_precision="ieee") + bias).to(h.dtype.element_ty)
        at = (pair.to(tl.int64) * B + rows)[:, None] * H + u[None, :]
        tl.store(h + at, found, (rows < B)[:, None] & (u < H)[None, :])
        found = found.to(tl.float32)
        tl.store(parts + pair * 2 * B + rows, tl.sum(found, 1), rows < B)
        tl.store(parts + (pair * 2 + 1) * B + rows, tl.sum(found * found, 1), rows < B)


@triton.jit
def _second(
    h, gain, shift, w2, b2, sums, z, B,
    H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr,
    HW: tl.constexpr, OW: tl.constexpr, WALKS: tl.constexpr,
):  # fmt: skip
    """z[rows, pair]."""
    pair, u, o = tl.program_id(0), tl.arange(0, HW), tl.arange(0, OW)
    own = (pair * H if OWN else 0) + u
    g, s = tl.load(gain + own, u < H, 0.0)[None, :], tl.load(shift + own, u < H, 0.0)[None, :]
    w = _matrix(w2, pair, 0, H, H, O, HW, OW)
    bias = tl.load(b2 + pair * O + o, o < O, 0.0).to(tl.float32)[None, :]
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        n, _ = _normal(_tile(h, pair, rows, B, H, HW), sums, rows, B, P * H, EPS)
        r = tl.maximum(g * n + s, 0.0).to(w.dtype)
        found = tl.dot(r, w, input_precision="ieee") + bias
        at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
        tl.store(z + at, found.to(z.dtype.element_ty), (rows < B)[:, None] & (o < O)[None, :])


@triton.jit
def _pull_of(dz, pair, rows, B, O: tl.constexpr, P: tl.constexpr, OW: tl.constexpr):
    """dz[rows, pair], zeros around: (ROWS, OW)."""
    o = tl.arange(0, OW)
    at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
    return tl.load(dz + at, (rows < B)[:, None] & (o < O)[None, :], 0.0)


@triton.jit
def _pulls(
    h, gain, shift, w2, sums, dz, parts, dw2, db2, dgain, dshift, B,
    H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr,
    HW: tl.constexpr, OW: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """dr = dz W2^T; da = dr where r > 0; dn = gain da; parts[pair] (2, B) = sums of dn and of dn n over the units.

    Gradients of W2 (r^T dz), b2, gain (sum da n), shift (sum da), by split."""
    pair, split, u, o = tl.program_id(0), tl.program_id(1), tl.arange(0, HW), tl.arange(0, OW)
    own = (pair * H if OWN else 0) + u
    g, s = tl.load(gain + own, u < H, 0.0)[None, :], tl.load(shift + own, u < H, 0.0)[None, :]
    back = tl.trans(_matrix(w2, pair, 0, H, H, O, HW, OW))
    for_w2, for_b2 = tl.zeros((HW, OW), tl.float32), tl.zeros((OW,), tl.float32)
    for_gain, for_shift = tl.zeros((HW,), tl.float32), tl.zeros((HW,), tl.float32)
    for start in range(split * ROWS, B, SPLITS * ROWS):
        rows = start + tl.arange(0, ROWS)
        n, _ = _normal(_tile(h, pair, rows, B, H, HW), sums, rows, B, P * H, EPS)
        a = g * n + s
        pull = _pull_of(dz, pair, rows, B, O, P, OW)
        da = tl.where(a > 0, tl.dot(pull, back, input_precision="ieee"), 0.0)
        tl.store(parts + pair * 2 * B + rows, tl.sum(da * g, 1), rows < B)
        tl.store(parts + (pair * 2 + 1) * B + rows, tl.sum(da * g * n, 1), rows < B)
        r = tl.maximum(a, 0.0).to(back.dtype)
        for_w2 = tl.dot(tl.trans(r), pull, for_w2, input_precision="ieee")
        for_b2 += tl.sum(pull.to(tl.float32), 0)
        for_gain += tl.sum(da * n, 0)
        for_shift += tl.sum(da, 0)
    place = split * P + pair
    _store_matrix(dw2, for_w2, place, H, O, HW, OW)
    tl.store(db2 + place * O + o, for_b2, o < O)
    tl.store(dgain + place * H + u, for_gain, u < H)
    tl.store(dshift + place * H + u, for_shift, u < H)


@triton.jit
def _inputs(
    v, w1, h, gain, shift, w2, first, second, sums, pulls, dz, sides, dw1, db1, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, IW: tl.constexpr, HW: tl.constexpr,
    OW: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """dh = (dn - mean(dn) - n mean(dn n)) / std, means over the row; dx = dh W1^T; dW1 = x^T dh; db1 = sum dh."""
    pair, split, u = tl.program_id(0), tl.program_id(1), tl.arange(0, HW)
    i, j = tl.load(first + pair), tl.load(second + pair)
    own = (pair * H if OWN else 0) + u
    g, s = tl.load(gain + own, u < H, 0.0)[None, :], tl.load(shift + own, u < H, 0.0)[None, :]
    back = tl.trans(_matrix(w2, pair, 0, H, H, O, HW, OW))
    to_p = tl.trans(_matrix(w1, pair, 0, INPUTS * D, D, H, DW, HW))
    to_q = tl.trans(_matrix(w1, pair, D, INPUTS * D, D, H, DW, HW))
    to_both = to_q
    if INPUTS == 3:
        to_both = tl.trans(_matrix(w1, pair, 2 * D, INPUTS * D, D, H, DW, HW))
    for_w1, for_b1 = tl.zeros((IW, HW), tl.float32), tl.zeros((HW,), tl.float32)
    for start in range(split * ROWS, B, SPLITS * ROWS):
        rows = start + tl.arange(0, ROWS)
        n, inverse = _normal(_tile(h, pair, rows, B, H, HW), sums, rows, B, P * H, EPS)
        pull = _pull_of(dz, pair, rows, B, O, P, OW)
        dn = tl.where(g * n + s > 0, tl.dot(pull, back, input_precision="ieee"), 0.0) * g
        mean1 = tl.load(pulls + rows, rows < B, 0.0) / (P * H)
        mean2 = tl.load(pulls + B + rows, rows < B, 0.0) / (P * H)
        dh = (dn - mean1[:, None] - n * mean2[:, None]) * inverse[:, None]
        dh = tl.where((rows < B)[:, None] & (u < H)[None, :], dh, 0.0)
        for_b1 += tl.sum(dh, 0)
        turned = dh.to(v.dtype.element_ty)
        x = _input(v, rows, i, j, B, F, D, INPUTS, IW)
        for_w1 = tl.dot(tl.trans(x), turned, for_w1, input_precision="ieee")
        dp, dq = tl.dot(turned, to_p, input_precision="ieee"), tl.dot(turned, to_q, input_precision="ieee")
        if INPUTS == 3:
            both = tl.dot(turned, to_both, input_precision="ieee")
            dp += both * vectors_of(v, rows, j, B, F, D, DW).to(tl.float32)
            dq += both * vectors_of(v, rows, i, B, F, D, DW).to(tl.float32)
        store_side(sides, dp, pair, 0, rows, B, D, DW)
        store_side(sides, dq, pair, 1, rows, B, D, DW)
    place = split * P + pair
    _store_matrix(dw1, for_w1, place, INPUTS * D, H, IW, HW)
    tl.store(db1 + place * H + u, for_b1, u < H)


def _sizes(v: Tensor, w1: Tensor, w2: Tensor, gain: Tensor) -> dict[str, Any]:
    """The sizes that the kernels are made for."""
    (_, fields, dim), (pairs, inputs, hidden) = v.shape, w1.shape
    sizes = {"F": fields, "D": dim, "H": hidden, "O": w2.shape[2], "P": pairs, "INPUTS": inputs // dim}
    # A tile of 16 outputs made Triton 3.6 address shared memory out of range on an H200.
    wide = {"DW": (16, dim), "IW": (16, inputs), "HW": (16, hidden), "OW": (32, w2.shape[2])}
    sizes |= {name: max(least, triton.next_power_of_2(size)) for name, (least, size) in wide.items()}
    return sizes | {"OWN": gain.shape[0] > 1, "EPS": EPSILON, "ROWS": ROWS}


def _only(sizes: dict[str, Any], names: str) -> dict[str, Any]:
    return {name: sizes[name] for name in names.split()}


@torch.library.custom_op("fieldwise::micro", mutates_args=())
def micro(
    v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """z (B, P, O), h (P, B, H) and the norm's sums (2, B): v (B, F, D), weights (P, in, out), all contiguous and of one
    dtype but gain and shift (1 or P, 1, H), which are float32."""
    sizes, rows, pairs = _sizes(v, w1, w2, gain), len(v), len(w1)
    grid = (pairs, WALKS)
    h = torch.empty(pairs, rows, w1.shape[2], dtype=v.dtype, device=v.device)
    z = torch.empty(rows, pairs, w2.shape[2], dtype=v.dtype, device=v.device)
    parts = torch.empty(pairs, 2, rows, device=v.device)
    own = _only(sizes, "F D H INPUTS ROWS IW HW")
    _first[grid](v, w1, b1, first, second, h, parts, rows, WALKS=WALKS, **own)
    sums = parts.sum(0)
    _second[grid](h, gain, shift, w2, b2, sums, z, rows, WALKS=WALKS, **_only(sizes, "H O P OWN EPS ROWS HW OW"))
    return z, h, sums


@torch.library.custom_op("fieldwise::micro_backward", mutates_args=())
def micro_backward(
    dz: Tensor, v: Tensor, w1: Tensor, h: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, first: Tensor,
    second: Tensor, sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of v, w1, b1, gain, shift, w2, b2."""
    sizes, rows, (pairs, inputs, hidden), out = _sizes(v, w1, w2, gain), len(v), w1.shape, w2.shape[2]
    grid = (pairs, SPLITS)

    def by_split(*shape: int) -> Tensor:
        return torch.empty(SPLITS, pairs, *shape, device=v.device)

    parts, dw2, db2 = torch.empty(pairs, 2, rows, device=v.device), by_split(hidden, out), by_split(1, out)
    dgain, dshift, dw1, db1 = by_split(1, hidden), by_split(1, hidden), by_split(inputs, hidden), by_split(1, hidden)
    own = _only(sizes, "H O P OWN EPS ROWS HW OW")
    _pulls[grid](h, gain, shift, w2, sums, dz, parts, dw2, db2, dgain, dshift, rows, SPLITS=SPLITS, **own)
    sides = torch.empty(pairs, 2, rows, v.shape[2], dtype=v.dtype, device=v.device)
    given = v, w1, h, gain, shift, w2, first, second, sums
    _inputs[grid](*given, parts.sum(0), dz, sides, dw1, db1, rows, SPLITS=SPLITS, **sizes)
    norms = [values.sum(0) if sizes["OWN"] else values.sum((0, 1))[None] for values in (dgain, dshift)]
    weights = [values.sum(0).to(v.dtype) for values in (dw1, db1, dw2, db2)]
    return sum_sides(sides, v), weights[0], weights[1], norms[0], norms[1], weights[2], weights[3]


@micro.register_fake
def _(
    v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, b2: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    h = v.new_empty(len(w1), len(v), w1.shape[2])
    return v.new_empty(len(v), len(w1), w2.shape[2]), h, gain.new_empty(2, len(v))


@micro_backward.register_fake
def _(
    dz: Tensor, v: Tensor, w1: Tensor, h: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, first: Tensor,
    second: Tensor, sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    b1, b2 = w1.new_empty(len(w1), 1, w1.shape[2]), w2.new_empty(len(w2), 1, w2.shape[2])
    found = [torch.empty_like(each) for each in (v, w1, b1, gain, shift, w2, b2)]
    return found[0], found[1], found[2], found[3], found[4], found[5], found[6]


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    v, w1, _, gain, shift, w2, _, first, second = inputs
    ctx.set_materialize_grads(False)  # h and its sums are for us alone
    ctx.save_for_backward(v, w1, output[1], gain, shift, w2, first, second, output[2])


def _backward(ctx: Any, dz: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if dz is None:
        return (None,) * 9
    return (*micro_backward(dz.contiguous(), *ctx.saved_tensors), None, None)


micro.register_autograd(_backward, setup_context=_remember)
