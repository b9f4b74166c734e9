"""PIN's and NIFM's micro networks on a GPU (Triton): no pair's input or hidden units ever lie in memory.

Plain version: nn.micro.MicroNetwork with two layers and the fused norm. For each row b and pair p = (i, j):

    x = [v_i, v_j, v_i * v_j]            h = x W1_p + b1_p
    n = (h - mean_b) / std_b             over all pairs and units of the row
    r = relu(gain n + shift)             z = r W2_p + b2_p

The norm needs all pairs of a row before any r, so h is made anew in each of four passes: `_statistics` (sums of h and
h^2), `_outputs` (z), and backwards `_pulls` (the norm's two sums; gradients of W2, b2, gain, shift) and `_inputs`
(gradients of x, W1, b1). Arithmetic is cheaper here than memory, and h is never rounded: a rounded h would open or
close some units that the exact one does not. A program walks over a pair's rows with the pair's weights at hand. Sums
over rows are products with a column of ones, on the tensor cores: threads would else wait for each other in every tile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.kernels.triton_pairs import ROWS, store_side, sum_sides, vectors_of
from fieldwise.nn.norms import EPSILON

WALKS = 4  # programs that share a pair's rows, where no gradient is summed over them


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
    at = pair * (rows_in * columns) + (first + k)[:, None] * columns + n[None, :]
    tl.store(w + at, values.to(w.dtype.element_ty), cells)


@triton.jit
def _store_sums(into, products, pair, COUNT: tl.constexpr, TALL: tl.constexpr, O: tl.constexpr, OW: tl.constexpr):
    """into[pair] = the products with the column of ones, column O."""
    n, o = tl.arange(0, TALL), tl.arange(0, OW)
    sums = tl.sum(tl.where((o == O)[None, :], products, 0.0), 1)
    tl.store(into + pair * COUNT + n, sums.to(into.dtype.element_ty), n < COUNT)


@triton.jit
def _first_weights(
    w1, b1, pair, D: tl.constexpr, H: tl.constexpr, INPUTS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr
):
    """W1's parts for v_i, v_j and their product, and b1."""
    u = tl.arange(0, HW)
    one = _matrix(w1, pair, 0, INPUTS * D, D, H, DW, HW)
    two = _matrix(w1, pair, D, INPUTS * D, D, H, DW, HW)
    three = two
    if INPUTS == 3:
        three = _matrix(w1, pair, 2 * D, INPUTS * D, D, H, DW, HW)
    return one, two, three, tl.load(b1 + pair * H + u, u < H, 0.0).to(tl.float32)[None, :]


@triton.jit
def _hidden(p, q, one, two, three, bias, INPUTS: tl.constexpr):
    """h of a tile of rows: (ROWS, HW), zeros behind H."""
    h = tl.dot(p, one, input_precision="ieee")
    h = tl.dot(q, two, h, input_precision="ieee")
    if INPUTS == 3:
        h = tl.dot(p * q, three, h, input_precision="ieee")
    return h + bias


@triton.jit
def _normal(h, sums, rows, B, COUNT: tl.constexpr, EPS: tl.constexpr):
    """n, and 1 / std of each row; `sums` (2, B) are those of h and h^2 over COUNT units."""
    mean = tl.load(sums + rows, rows < B, 0.0) / COUNT
    variance = tl.load(sums + B + rows, rows < B, 0.0) / COUNT - mean * mean
    inverse = 1 / tl.sqrt(tl.maximum(variance, 0.0) + EPS)
    return (h - mean[:, None]) * inverse[:, None], inverse


@triton.jit
def _gain_and_shift(gain, shift, pair, H: tl.constexpr, OWN: tl.constexpr, HW: tl.constexpr):
    u = tl.arange(0, HW)
    at = (pair * H if OWN else 0) + u
    return tl.load(gain + at, u < H, 0.0)[None, :], tl.load(shift + at, u < H, 0.0)[None, :]


@triton.jit
def _pull_of(dz, pair, rows, B, O: tl.constexpr, P: tl.constexpr, OW: tl.constexpr):
    """dz[rows, pair], then a column of ones, then zeros: (ROWS, OW)."""
    o = tl.arange(0, OW)
    at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
    pull = tl.load(dz + at, (rows < B)[:, None] & (o < O)[None, :], 0.0)
    return tl.where((o == O)[None, :], 1.0, pull).to(dz.dtype.element_ty)


@triton.jit
def _statistics(
    v, w1, b1, first, second, parts, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr,
    HW: tl.constexpr, WALKS: tl.constexpr,
):  # fmt: skip
    """parts[pair] (2, B) = sums of h and of h^2 over the pair's units."""
    pair = tl.program_id(0)
    i, j = tl.load(first + pair), tl.load(second + pair)
    one, two, three, bias = _first_weights(w1, b1, pair, D, H, INPUTS, DW, HW)
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, F, D, DW), vectors_of(v, rows, j, B, F, D, DW)
        h = _hidden(p, q, one, two, three, bias, INPUTS)
        tl.store(parts + pair * 2 * B + rows, tl.sum(h, 1), rows < B)
        tl.store(parts + (pair * 2 + 1) * B + rows, tl.sum(h * h, 1), rows < B)


@triton.jit
def _outputs(
    v, w1, b1, gain, shift, w2, b2, first, second, sums, z, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
    WALKS: tl.constexpr,
):  # fmt: skip
    """z[rows, pair]."""
    pair, o = tl.program_id(0), tl.arange(0, OW)
    i, j = tl.load(first + pair), tl.load(second + pair)
    one, two, three, bias = _first_weights(w1, b1, pair, D, H, INPUTS, DW, HW)
    g, s = _gain_and_shift(gain, shift, pair, H, OWN, HW)
    w = _matrix(w2, pair, 0, H, H, O, HW, OW)
    bias2 = tl.load(b2 + pair * O + o, o < O, 0.0).to(tl.float32)[None, :]
    for start in range(tl.program_id(1) * ROWS, B, WALKS * ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, F, D, DW), vectors_of(v, rows, j, B, F, D, DW)
        n, _ = _normal(_hidden(p, q, one, two, three, bias, INPUTS), sums, rows, B, P * H, EPS)
        r = tl.maximum(g * n + s, 0.0).to(w.dtype)
        found = tl.dot(r, w, input_precision="ieee") + bias2
        at = rows.to(tl.int64)[:, None] * (P * O) + pair * O + o[None, :]
        tl.store(z + at, found.to(z.dtype.element_ty), (rows < B)[:, None] & (o < O)[None, :])


@triton.jit
def _pulls(
    v, w1, b1, gain, shift, w2, first, second, sums, dz, parts, dw2, dgain, dshift, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
):  # fmt: skip
    """dr = dz W2^T; da = dr where r > 0; dn = gain da; parts[pair] (2, B) = sums of dn and of dn n over the units.

    Gradients of W2 (r^T dz), gain (sum da n), shift (sum da).
    """
    pair = tl.program_id(0)
    i, j = tl.load(first + pair), tl.load(second + pair)
    one, two, three, bias = _first_weights(w1, b1, pair, D, H, INPUTS, DW, HW)
    g, s = _gain_and_shift(gain, shift, pair, H, OWN, HW)
    back = tl.trans(_matrix(w2, pair, 0, H, H, O, HW, OW))
    for_w2, for_gain = tl.zeros((HW, OW), tl.float32), tl.zeros((HW, OW), tl.float32)
    for_shift = tl.zeros((HW, OW), tl.float32)
    for start in range(0, B, ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, F, D, DW), vectors_of(v, rows, j, B, F, D, DW)
        n, _ = _normal(_hidden(p, q, one, two, three, bias, INPUTS), sums, rows, B, P * H, EPS)
        a = g * n + s
        pull = _pull_of(dz, pair, rows, B, O, P, OW)
        da = tl.where(a > 0, tl.dot(pull, back, input_precision="ieee"), 0.0)
        tl.store(parts + pair * 2 * B + rows, tl.sum(da * g, 1), rows < B)
        tl.store(parts + (pair * 2 + 1) * B + rows, tl.sum(da * g * n, 1), rows < B)
        r = tl.maximum(a, 0.0).to(back.dtype)
        for_w2 = tl.dot(tl.trans(r), pull, for_w2, input_precision="ieee")
        for_gain = tl.dot(tl.trans((da * n).to(back.dtype)), pull, for_gain, input_precision="ieee")
        for_shift = tl.dot(tl.trans(da.to(back.dtype)), pull, for_shift, input_precision="ieee")
    _store_matrix(dw2, for_w2, pair, 0, H, H, O, HW, OW)
    _store_sums(dgain, for_gain, pair, H, HW, O, OW)
    _store_sums(dshift, for_shift, pair, H, HW, O, OW)


@triton.jit
def _inputs(
    v, w1, b1, gain, shift, w2, first, second, sums, pulls, dz, sides, dw1, db1, B,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, O: tl.constexpr, P: tl.constexpr, INPUTS: tl.constexpr,
    OWN: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr, DW: tl.constexpr, HW: tl.constexpr, OW: tl.constexpr,
):  # fmt: skip
    """dh = (dn - mean(dn) - n mean(dn n)) / std, means over the row; dx = dh W1^T; dW1 = x^T dh; db1 = sum dh."""
    pair, u = tl.program_id(0), tl.arange(0, HW)
    i, j = tl.load(first + pair), tl.load(second + pair)
    one, two, three, bias = _first_weights(w1, b1, pair, D, H, INPUTS, DW, HW)
    g, s = _gain_and_shift(gain, shift, pair, H, OWN, HW)
    back = tl.trans(_matrix(w2, pair, 0, H, H, O, HW, OW))
    # Transposed, (H, D): a product with 64 rows is a warp group's own, one with 32 is not.
    for_one, for_two = tl.zeros((HW, DW), tl.float32), tl.zeros((HW, DW), tl.float32)
    for_three, for_b1 = tl.zeros((HW, DW), tl.float32), tl.zeros((HW, OW), tl.float32)
    for start in range(0, B, ROWS):
        rows = start + tl.arange(0, ROWS)
        p, q = vectors_of(v, rows, i, B, F, D, DW), vectors_of(v, rows, j, B, F, D, DW)
        n, inverse = _normal(_hidden(p, q, one, two, three, bias, INPUTS), sums, rows, B, P * H, EPS)
        pull = _pull_of(dz, pair, rows, B, O, P, OW)
        dn = tl.where(g * n + s > 0, tl.dot(pull, back, input_precision="ieee"), 0.0) * g
        mean1 = tl.load(pulls + rows, rows < B, 0.0) / (P * H)
        mean2 = tl.load(pulls + B + rows, rows < B, 0.0) / (P * H)
        dh = (dn - mean1[:, None] - n * mean2[:, None]) * inverse[:, None]
        turned = tl.where((rows < B)[:, None] & (u < H)[None, :], dh, 0.0).to(v.dtype.element_ty)
        for_b1 = tl.dot(tl.trans(turned), pull, for_b1, input_precision="ieee")
        for_one = tl.dot(tl.trans(turned), p, for_one, input_precision="ieee")
        for_two = tl.dot(tl.trans(turned), q, for_two, input_precision="ieee")
        dp = tl.dot(turned, tl.trans(one), input_precision="ieee")
        dq = tl.dot(turned, tl.trans(two), input_precision="ieee")
        if INPUTS == 3:
            for_three = tl.dot(tl.trans(turned), p * q, for_three, input_precision="ieee")
            both = tl.dot(turned, tl.trans(three), input_precision="ieee")
            dp += both * q.to(tl.float32)
            dq += both * p.to(tl.float32)
        store_side(sides, dp, pair, 0, rows, B, D, DW)
        store_side(sides, dq, pair, 1, rows, B, D, DW)
    _store_matrix(dw1, tl.trans(for_one), pair, 0, INPUTS * D, D, H, DW, HW)
    _store_matrix(dw1, tl.trans(for_two), pair, D, INPUTS * D, D, H, DW, HW)
    if INPUTS == 3:
        _store_matrix(dw1, tl.trans(for_three), pair, 2 * D, INPUTS * D, D, H, DW, HW)
    _store_sums(db1, for_b1, pair, H, HW, O, OW)


def _sizes(v: Tensor, w1: Tensor, w2: Tensor, gain: Tensor) -> dict[str, Any]:
    """The sizes that the kernels are made for."""
    (_, fields, dim), (pairs, inputs, hidden) = v.shape, w1.shape
    sizes = {"F": fields, "D": dim, "H": hidden, "O": w2.shape[2], "P": pairs, "INPUTS": inputs // dim}
    # A tile of 16 outputs made Triton 3.6 address shared memory out of range on an H200.
    wide = {"DW": (16, dim), "HW": (16, hidden), "OW": (32, w2.shape[2] + 1)}
    sizes |= {name: max(least, triton.next_power_of_2(size)) for name, (least, size) in wide.items()}
    return sizes | {"OWN": gain.shape[0] > 1, "EPS": EPSILON, "ROWS": ROWS}


def _over_pairs(parts: Tensor) -> Tensor:
    """parts (P, 2, B) -> (2, B), summed as a product with ones: torch's sum takes five times as long for this shape."""
    return torch.mv(parts.flatten(1).T, parts.new_ones(len(parts))).view(parts.shape[1:])


@torch.library.custom_op("fieldwise::micro", mutates_args=())
def micro(
    v: Tensor,
    w1: Tensor,
    b1: Tensor,
    gain: Tensor,
    shift: Tensor,
    w2: Tensor,
    b2: Tensor,
    first: Tensor,
    second: Tensor,
) -> tuple[Tensor, Tensor]:
    """z (B, P, O) and the norm's sums (2, B): v (B, F, D), weights (P, in, out), all contiguous and of one dtype but
    gain and shift (1 or P, 1, H), which are float32."""
    sizes, rows, pairs = _sizes(v, w1, w2, gain), len(v), len(w1)
    grid = (pairs, WALKS)
    z = torch.empty(rows, pairs, w2.shape[2], dtype=v.dtype, device=v.device)
    parts = torch.empty(pairs, 2, rows, device=v.device)
    own = {name: sizes[name] for name in ("F", "D", "H", "INPUTS", "ROWS", "DW", "HW")}
    _statistics[grid](v, w1, b1, first, second, parts, rows, WALKS=WALKS, num_stages=1, **own)
    sums = _over_pairs(parts)
    _outputs[grid](v, w1, b1, gain, shift, w2, b2, first, second, sums, z, rows, WALKS=WALKS, **sizes)
    return z, sums


@torch.library.custom_op("fieldwise::micro_backward", mutates_args=())
def micro_backward(
    dz: Tensor, v: Tensor, w1: Tensor, b1: Tensor, gain: Tensor, shift: Tensor, w2: Tensor, first: Tensor,
    second: Tensor, sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of v, w1, b1, gain, shift, w2, b2."""
    sizes, rows, pairs = _sizes(v, w1, w2, gain), len(v), len(w1)
    given = v, w1, b1, gain, shift, w2, first, second, sums
    parts = torch.empty(pairs, 2, rows, device=v.device)
    dw1, db1, dw2 = torch.empty_like(w1), torch.empty_like(b1), torch.empty_like(w2)
    db2 = torch.mv(dz.flatten(1).T, dz.new_ones(rows)).view(pairs, 1, w2.shape[2])
    dgain, dshift = (torch.empty(pairs, 1, w1.shape[2], device=v.device) for _ in range(2))
    _pulls[(pairs,)](*given, dz, parts, dw2, dgain, dshift, rows, **sizes)
    sides = torch.empty(pairs, 2, rows, v.shape[2], dtype=v.dtype, device=v.device)
    _inputs[(pairs,)](*given, _over_pairs(parts), dz, sides, dw1, db1, rows, **sizes)
    if not sizes["OWN"]:
        dgain, dshift = dgain.sum(0, keepdim=True), dshift.sum(0, keepdim=True)
    return sum_sides(sides, v), dw1, db1, dgain, dshift, dw2, db2


@micro.register_fake
def _(
    v: Tensor,
    w1: Tensor,
    b1: Tensor,
    gain: Tensor,
    shift: Tensor,
    w2: Tensor,
    b2: Tensor,
    first: Tensor,
    second: Tensor,
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
    ctx.set_materialize_grads(False)  # the sums are for us alone
    ctx.save_for_backward(v, w1, b1, gain, shift, w2, first, second, output[1])


def _backward(ctx: Any, dz: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if dz is None:
        return (None,) * 9
    return (*micro_backward(dz.contiguous(), *ctx.saved_tensors), None, None)


micro.register_autograd(_backward, setup_context=_remember)
