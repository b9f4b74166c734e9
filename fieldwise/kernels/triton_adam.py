"""Adam on the touched rows of a table, on a GPU (Triton): no sort, static shapes, the same bits on every run.

The plain version is optim.Adam.update on gathered rows; this one equals it to rounding. A row id occurs several times
in a batch. Of its places one, whichever wrote last, becomes its owner (`_mark`); the others add their gradients to the
owner's (`_add`); owners alone move their row (`_move`). The sums are of whole numbers, gradient * 2^s with one s for
the batch, because a sum of whole numbers does not depend on the order in which threads come.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024  # numbers of a program
# beta^gap = beta^(low bits of gap) beta^(high bits of gap), both from a table: in float32, powers would lose three
# digits over a gap of 1000 steps, and taking them in float64 would cost more than all else.
NEAR_BITS = tl.constexpr(10)
NEAR = tl.constexpr(1 << 10)
STEPS = 1 << 24  # that a float32 can count


@triton.jit
def _scale(largest, BITS: tl.constexpr, SIGN: tl.constexpr):
    """2^s, or 2^-s with SIGN -1: s such that BITS bits hold the largest gradient. Made of a float64's bits."""
    exponent = (largest >> 23) - 126  # |grad| < 2^exponent
    return ((1023 + SIGN * (BITS - exponent)).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _fixed(grad, scale):
    """grad * scale as whole numbers."""
    return tl.floor(grad.to(tl.float64) * scale + 0.5).to(tl.int64)


@triton.jit
def _mark(ids, grads, owner, largest, M, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """owner[id] = one of id's places; largest = max |grad| as the bits of a float, which order as whole numbers."""
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    inside = place < M
    tl.store(owner + tl.load(ids + place, inside, 0), place, inside)
    cells = inside[:, None] & (column < D)[None, :]
    grad = tl.load(grads + place.to(tl.int64)[:, None] * D + column[None, :], cells, 0.0)
    size = tl.where(grad == grad, tl.abs(grad), float("inf"))
    tl.atomic_max(largest, tl.max(tl.max(size, 1), 0).to(tl.int32, bitcast=True))


@triton.jit
def _add(
    ids, grads, owner, largest, sums, shared, M,
    D: tl.constexpr, BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """sums[owner] += grad, for places that own nothing; shared[owner] = 1."""
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    inside = place < M
    own = tl.load(owner + tl.load(ids + place, inside, 0), inside, 0)
    guest = inside & (own != place)
    tl.store(shared + own, 1, guest)
    cells = guest[:, None] & (column < D)[None, :]
    grad = tl.load(grads + place.to(tl.int64)[:, None] * D + column[None, :], cells, 0.0)
    fixed = _fixed(grad, _scale(tl.load(largest), BITS, 1))
    tl.atomic_add(sums + own.to(tl.int64)[:, None] * D + column[None, :], fixed, cells)


@triton.jit
def _move(
    ids, grads, owner, largest, sums, shared, weight, mean, square, last, numbers, powers, M, rest1, rest2,
    D: tl.constexpr, BITS: tl.constexpr, DECAYS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """g = own grad + sums; w -= rate m / (sqrt(v) + eps), with

        m = beta1^gap m + (1 - beta1) g        v = beta2^gap v + (1 - beta2) g^2

    gap: steps since the row was touched. Leaves `sums` and `shared` zero for the next step.
    """
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    inside = place < M
    row = tl.load(ids + place, inside, 0).to(tl.int64)
    mine = inside & (tl.load(owner + row, inside, -1) == place)
    cells = mine[:, None] & (column < D)[None, :]
    at = place.to(tl.int64)[:, None] * D + column[None, :]
    grad = tl.load(grads + at, cells, 0.0)
    joined = mine & (tl.load(shared + place, mine, 0) != 0)
    joined_cells = cells & joined[:, None]
    top = tl.load(largest)
    fixed = _fixed(grad, _scale(top, BITS, 1)) + tl.load(sums + at, joined_cells, 0)
    total = (fixed.to(tl.float64) * _scale(top, BITS, -1)).to(tl.float32)
    grad = tl.where(joined_cells, tl.where(top < 0x7F800000, total, float("nan")), grad)

    step, rate, eps = tl.load(numbers), tl.load(numbers + 2), tl.load(numbers + 3)
    gap = tl.zeros_like(place) + 1
    if DECAYS:
        gap = step.to(tl.int32) - tl.load(last + row, mine, 0)
    near, far = powers + 2 * (gap & (NEAR - 1)), powers + 2 * (NEAR + (gap >> NEAR_BITS))
    keep1 = (tl.load(near, mine, 0.0) * tl.load(far, mine, 0.0))[:, None]
    keep2 = (tl.load(near + 1, mine, 0.0) * tl.load(far + 1, mine, 0.0))[:, None]
    there = row[:, None] * D + column[None, :]
    m = tl.load(mean + there, cells, 0.0) * keep1 + rest1 * grad
    v = tl.load(square + there, cells, 0.0) * keep2 + rest2 * grad * grad
    w = tl.load(weight + there, cells, 0.0) - rate * m / (tl.sqrt(v) + eps)
    # Several threads hold the same number: all must have read it before one writes.
    tl.debug_barrier()
    tl.store(sums + at, tl.zeros_like(fixed), joined_cells)
    tl.store(shared + place, 0, joined)
    if DECAYS:
        tl.store(last + row, tl.zeros_like(place) + step.to(tl.int32), mine)
    tl.store(mean + there, m, cells)
    tl.store(square + there, v, cells)
    tl.store(weight + there, w, cells)


@dataclass(frozen=True)
class Scratch:
    """What a step needs beside the table: for a table of N rows and gradients (M, D). All but `owner` stays zero."""

    owner: Tensor
    largest: Tensor
    sums: Tensor
    shared: Tensor
    powers: Tensor

    @classmethod
    def of(cls, table: Tensor, values: Tensor, betas: tuple[float, float]) -> Scratch:
        device = table.device
        return cls(
            torch.empty(len(table), dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.zeros(values.shape, dtype=torch.int64, device=device),
            torch.zeros(len(values), dtype=torch.int32, device=device),
            _powers(betas, device),
        )


def _powers(betas: tuple[float, float], device: torch.device) -> Tensor:
    """beta1^k and beta2^k for k = 0 to 1023, then for k = 0, 1024, 2048, ...: all steps."""
    near, far = torch.arange(NEAR.value), torch.arange(0, STEPS, NEAR.value)
    return torch.pow(torch.tensor([betas], dtype=torch.float64), torch.cat([near, far])[:, None]).float().to(device)


@dataclass(frozen=True)
class Tables:
    """A table (N, D) and its moments, float32, and with `paper` decay the last step of each row (N,)."""

    weight: Tensor
    mean: Tensor
    square: Tensor
    last: Tensor | None


def adam_rows(
    tables: Tables, ids: Tensor, values: Tensor, numbers: Tensor, betas: tuple[float, float], scratch: Scratch
) -> None:
    """Sums the gradients `values` (M, D) of each distinct id of `ids` (M,) and moves that row.

    `numbers` are (step, lr, rate, eps) on the device, the step counted from 1: see Adam.numbers.
    """
    places, dim = values.shape
    wide = triton.next_power_of_2(dim)
    tall = max(1, TILE // wide)
    grid = (triton.cdiv(places, tall),)
    bits = 61 - max(1, places - 1).bit_length()
    block = {"D": dim, "BLOCK_M": tall, "BLOCK_D": wide}
    marks = scratch.owner, scratch.largest
    scratch.largest.zero_()
    _mark[grid](ids, values, *marks, places, **block)
    _add[grid](ids, values, *marks, scratch.sums, scratch.shared, places, BITS=bits, **block)
    last = scratch.shared if tables.last is None else tables.last
    _move[grid](
        ids, values, *marks, scratch.sums, scratch.shared, tables.weight, tables.mean, tables.square, last,
        numbers, scratch.powers, places, 1 - betas[0], 1 - betas[1],
        BITS=bits, DECAYS=tables.last is not None, **block,
    )  # fmt: skip
