"""The last norm of micro networks on a GPU (Triton), and the gradient of their outputs z through it.

With n = (z - mean) / std over all pairs and outputs of a row, and one gain and shift for all pairs:

    y = gain n + shift        dn = gain dy        dz = (dn - mean(dn) - n mean(dn n)) / std
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.loops.triton_pairs import summed

TILE = 4096  # numbers of a row at a time
ROWS = 4  # in a tile of the backward pass: 64 bytes of a pair's outputs in bfloat16
PULLED = 2048  # numbers in such a tile
WARPS = 4


@triton.jit
def _normed(
    z, gain, shift, y, norm, B,
    SIZE: tl.constexpr, WIDE: tl.constexpr, O: tl.constexpr, EPS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """y, padded with zeros to WIDE numbers a row, and norm (2, B) = mean and 1 / std of each row."""
    row, numbers = tl.program_id(0), tl.arange(0, TILE)
    at = row.to(tl.int64) * SIZE
    one, two = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in tl.static_range(0, SIZE, TILE):
        values = tl.load(z + at + start + numbers, start + numbers < SIZE, 0.0).to(tl.float32)
        one += values
        two += values * values
    mean = tl.sum(one, 0) * (1.0 / SIZE)
    inverse = tl.rsqrt(tl.maximum(tl.sum(two, 0) * (1.0 / SIZE) - mean * mean, 0.0) + EPS)
    tl.store(norm + row, mean)
    tl.store(norm + B + row, inverse)
    for start in tl.static_range(0, WIDE, TILE):
        k = start + numbers
        if WIDE > TILE:  # else the row is still in registers
            values = tl.load(z + at + k, k < SIZE, 0.0).to(tl.float32)
        found = tl.load(gain + k % O) * ((values - mean) * inverse) + tl.load(shift + k % O)
        into = y + row.to(tl.int64) * WIDE + k
        tl.store(into, tl.where(k < SIZE, found, 0.0).to(y.dtype.element_ty), k < WIDE)


@triton.jit
def _pulls(
    dy, z, opened, b2, gain, norm, pulls, padded, parts, B,
    O: tl.constexpr, P: tl.constexpr, OP: tl.constexpr, WIDE: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """padded[pair, row] = dz in OP numbers, zeros after O; pulls (2, B) = sums of dz e and of dz (z - b2 - f).

    parts[row] (2, OP) = the row's part of the last gain's and shift's gradients, sums of dy n and of dy. Without LAST
    dz is dy. A tile is (PAIRS, ROWS, OP): dy and z lie in memory row by row, all else pair by pair.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o, inside = tl.arange(0, OP)[None, None, :], (rows < B)[None, :, None]
    first = (rows.to(tl.int64) * (P * O))[None, :, None] + o
    pulling = dy + (rows.to(tl.int64) * WIDE)[None, :, None] + o
    mean, inverse = tl.zeros((1, ROWS, 1), tl.float32), tl.zeros((1, ROWS, 1), tl.float32) + 1.0
    mean1, mean2, g = mean, mean, tl.zeros((1, 1, OP), tl.float32) + 1.0
    if LAST:
        g = tl.load(gain + o, o < O, 0.0)
        mean = tl.load(norm + rows, rows < B, 0.0)[None, :, None]
        inverse = tl.load(norm + B + rows, rows < B, 0.0)[None, :, None]
        for_gain, for_shift = tl.zeros((PAIRS, ROWS, OP), tl.float32), tl.zeros((PAIRS, ROWS, OP), tl.float32)
        for start in range(0, P, PAIRS):
            pair = (start + tl.arange(0, PAIRS))[:, None, None]
            cells, at = (pair < P) & inside & (o < O), first + pair * O
            pull = tl.load(pulling + pair * O, cells, 0.0).to(tl.float32)
            for_gain += pull * (tl.load(z + at, cells, 0.0).to(tl.float32) - mean) * inverse
            for_shift += pull
        by_gain, by_shift = tl.sum(for_gain, 0), tl.sum(for_shift, 0)
        into = parts + (rows * (2 * OP))[:, None] + tl.arange(0, OP)[None, :]
        tl.store(into, by_gain, (rows < B)[:, None])
        tl.store(into + OP, by_shift, (rows < B)[:, None])
        gains = tl.load(gain + tl.arange(0, OP), tl.arange(0, OP) < O, 0.0)[None, :]
        mean1 = (tl.sum(gains * by_shift, 1) * (1.0 / (P * O)))[None, :, None]
        mean2 = (tl.sum(gains * by_gain, 1) * (1.0 / (P * O)))[None, :, None]
    one, two = tl.zeros((PAIRS, ROWS, OP), tl.float32), tl.zeros((PAIRS, ROWS, OP), tl.float32)
    for start in range(0, P, PAIRS):
        pair = (start + tl.arange(0, PAIRS))[:, None, None]
        known = (pair < P) & inside
        cells, at = known & (o < O), first + pair * O
        value = tl.load(z + at, cells, 0.0).to(tl.float32)
        pull = tl.load(pulling + pair * O, cells, 0.0).to(tl.float32)
        there = (pair.to(tl.int64) * B + rows[None, :, None]) * OP
        e = tl.load(opened + 2 * there + o, known, 0.0).to(tl.float32)
        f = tl.load(opened + 2 * there + (OP + o), known, 0.0).to(tl.float32)
        bias = tl.load(b2 + pair * O + o, (pair < P) & (o < O), 0.0).to(tl.float32)
        if LAST:
            pull = tl.where(cells, (pull * g - mean1 - (value - mean) * inverse * mean2) * inverse, 0.0)
        tl.store(padded + there + o, pull.to(padded.dtype.element_ty), known)
        one += pull * e
        two += pull * (value - bias - f)
    tl.store(pulls + rows, tl.sum(tl.sum(one, 2), 0), rows < B)
    tl.store(pulls + B + rows, tl.sum(tl.sum(two, 2), 0), rows < B)


def last_norm(z: Tensor, gain: Tensor, shift: Tensor, epsilon: float, wide: int) -> tuple[Tensor, Tensor]:
    """y (B, P O), each row padded with zeros to `wide` numbers, and mean and 1 / std of each row (2, B).

    z is (B, P, O), gain and shift are (1, 1, O).
    """
    y, norm, size = z.new_empty(len(z), wide), torch.empty(2, len(z), device=z.device), z[0].numel()
    sizes = {"SIZE": size, "WIDE": wide, "O": z.shape[2], "EPS": epsilon}
    sizes["TILE"] = min(TILE, triton.next_power_of_2(wide))
    _normed[(len(z),)](z, gain, shift, y, norm, len(z), num_warps=WARPS, **sizes)
    return y, norm


def pulled(
    dy: Tensor, z: Tensor, opened: Tensor, b2: Tensor, last: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dz (P, B, O rounded up to a power of 2), the two sums of each row (2, B), gradients of the last gain and shift.

    `last` is the last norm's gain and the statistics from `last_norm`; without it the third result is meaningless.
    """
    (rows, pairs, outputs), wide = z.shape, opened.shape[3]
    pulls, padded = torch.empty(2, rows, device=z.device), z.new_empty(pairs, rows, wide)
    parts, (gain, norm) = torch.empty(rows, 2, wide, device=z.device), last or (pulls, pulls)
    sizes = {"O": outputs, "P": pairs, "OP": wide, "WIDE": dy.stride(0), "LAST": last is not None}
    sizes |= {"ROWS": ROWS, "PAIRS": min(max(1, PULLED // (ROWS * wide)), triton.next_power_of_2(pairs))}
    given = dy, z, opened, b2, gain, norm, pulls, padded, parts, rows
    _pulls[(triton.cdiv(rows, ROWS),)](*given, num_warps=WARPS, **sizes)
    return padded, pulls, summed(parts)[:, :outputs].contiguous()
