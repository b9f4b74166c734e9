"""The last norm of micro networks on a GPU (Triton), and what comes back through it to their outputs z.

With n = (z - mean) / std over all pairs and outputs of a row, gain and shift the same for all pairs:

    y = gain n + shift        dn = gain dy        dz = (dn - mean(dn) - n mean(dn n)) / std
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fieldwise.kernels.triton_pairs import summed

TILE = 2048  # numbers of a row at a time
WARPS = 8


@triton.jit
def _normed(z, gain, shift, y, norm, B, SIZE: tl.constexpr, O: tl.constexpr, EPS: tl.constexpr, TILE: tl.constexpr):
    """y, and norm (2, B) = mean and 1 / std of each row."""
    row, numbers = tl.program_id(0), tl.arange(0, TILE)
    at = row.to(tl.int64) * SIZE
    one, two = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in range(0, SIZE, TILE):
        values = tl.load(z + at + start + numbers, start + numbers < SIZE, 0.0).to(tl.float32)
        one += values
        two += values * values
    mean = tl.sum(one, 0) * (1.0 / SIZE)
    inverse = tl.rsqrt(tl.maximum(tl.sum(two, 0) * (1.0 / SIZE) - mean * mean, 0.0) + EPS)
    tl.store(norm + row, mean)
    tl.store(norm + B + row, inverse)
    for start in range(0, SIZE, TILE):
        k = start + numbers
        values = tl.load(z + at + k, k < SIZE, 0.0).to(tl.float32)
        found = tl.load(gain + k % O) * ((values - mean) * inverse) + tl.load(shift + k % O)
        tl.store(y + at + k, found.to(y.dtype.element_ty), k < SIZE)


@triton.jit
def _pulls(
    dy, z, opened, b2, gain, norm, pulls, padded, parts, B,
    O: tl.constexpr, P: tl.constexpr, OP: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """padded[pair, row] = dz in OP numbers, zeros behind O; pulls (2, B) = sums of dz e and of dz (z - b2 - f).

    parts[row] (2, OP) = the row's part of the last gain's and shift's gradients, sums of dy n and of dy. Without LAST
    dz is dy.
    """
    row, numbers = tl.program_id(0), tl.arange(0, TILE)
    o, first = numbers % OP, row.to(tl.int64) * (P * O)
    mean, inverse, mean1, mean2 = 0.0, 1.0, 0.0, 0.0
    g = tl.zeros((TILE,), tl.float32) + 1.0
    if LAST:
        g = tl.load(gain + o, o < O, 0.0)
        mean, inverse = tl.load(norm + row), tl.load(norm + B + row)
        for_gain, for_shift = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
        for start in range(0, P * OP, TILE):
            pair = (start + numbers) // OP
            cells, at = (pair < P) & (o < O), first + pair * O + o
            pull = tl.load(dy + at, cells, 0.0).to(tl.float32)
            for_gain += pull * (tl.load(z + at, cells, 0.0).to(tl.float32) - mean) * inverse
            for_shift += pull
        into = parts + row * 2 * OP + tl.arange(0, OP)
        tl.store(into, tl.sum(tl.reshape(for_gain, (TILE // OP, OP)), 0))
        tl.store(into + OP, tl.sum(tl.reshape(for_shift, (TILE // OP, OP)), 0))
        mean1, mean2 = tl.sum(g * for_shift, 0) * (1.0 / (P * O)), tl.sum(g * for_gain, 0) * (1.0 / (P * O))
    one, two = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in range(0, P * OP, TILE):
        pair = (start + numbers) // OP
        cells, at = (pair < P) & (o < O), first + pair * O + o
        value, pull = tl.load(z + at, cells, 0.0).to(tl.float32), tl.load(dy + at, cells, 0.0).to(tl.float32)
        if LAST:
            pull = tl.where(cells, (pull * g - mean1 - (value - mean) * inverse * mean2) * inverse, 0.0)
        there = (pair.to(tl.int64) * B + row) * OP
        tl.store(padded + there + o, pull.to(padded.dtype.element_ty), pair < P)
        e = tl.load(opened + 2 * there + o, pair < P, 0.0).to(tl.float32)
        f = tl.load(opened + 2 * there + (OP + o), pair < P, 0.0).to(tl.float32)
        one += pull * e
        two += pull * (value - tl.load(b2 + pair * O + o, cells, 0.0).to(tl.float32) - f)
    tl.store(pulls + row, tl.sum(one, 0))
    tl.store(pulls + B + row, tl.sum(two, 0))


def last_norm(z: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """y (B, P, O), and mean and 1 / std of each row (2, B): z (B, P, O), gain and shift (1, 1, O)."""
    y, norm, size = torch.empty_like(z), torch.empty(2, len(z), device=z.device), z[0].numel()
    sizes = {"SIZE": size, "O": z.shape[2], "EPS": epsilon, "TILE": min(TILE, triton.next_power_of_2(size))}
    _normed[(len(z),)](z, gain, shift, y, norm, len(z), num_warps=WARPS, **sizes)
    return y, norm


def pulled(
    dy: Tensor, z: Tensor, opened: Tensor, b2: Tensor, last: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """dz (P, B, O rounded up to a power of 2), the two sums of each row (2, B), gradients of the last gain and shift.

    `last` are the last norm's gain and what `last_norm` left of it; without, the third means nothing.
    """
    (rows, pairs, outputs), wide = z.shape, opened.shape[3]
    pulls, padded = torch.empty(2, rows, device=z.device), z.new_empty(pairs, rows, wide)
    parts, (gain, norm) = torch.empty(rows, 2, wide, device=z.device), last or (pulls, pulls)
    sizes = {"O": outputs, "P": pairs, "OP": wide, "LAST": last is not None}
    sizes["TILE"] = min(TILE, triton.next_power_of_2(pairs * wide))
    _pulls[(rows,)](dy, z, opened, b2, gain, norm, pulls, padded, parts, rows, num_warps=WARPS, **sizes)
    return padded, pulls, summed(parts)[:, :outputs].contiguous()
