"""Adam on the touched rows of tables, on a GPU (Triton): no sort, static shapes, the same bits on every run.

The plain version is optim.Adam.update on gathered rows; this one equals it to rounding. A row id occurs several times
in a batch. Of its places the first to come becomes its owner (`_mark`). The others, its guests, add their gradients to
the owner's sums, while owners without guests move their rows (`_spread`); those with guests move last (`_join`). The
sums are of whole numbers, gradient * 2^s with one s for the batch, because a sum of whole numbers does not depend on
the order in which threads come.

One or two tables that were looked up by the same ids, a linear part's and the vectors' say, move in the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 512  # numbers of a program
TALL = 128  # rows of a program at most
MARKED = 256  # places of a program that marks
WARPS = 4
PROGRAMS = 4096  # of `_join`, which does not know before how many rows there are
BITS = 50  # of a whole number at most: up to 51, the mantissa of a float64 holds it as it is
# beta^gap = beta^(low bits of gap) beta^(high bits of gap), both from a table: in float32, powers would lose three
# digits over a gap of 1000 steps, and taking them in float64 would cost more than all else.
NEAR_BITS = tl.constexpr(10)
NEAR = tl.constexpr(1 << 10)
STEPS = 1 << 24  # that a float32 can count
# Counters: how many owners have guests, the largest gradient of each table; behind them what `_join` reads of these.
KEPT = tl.constexpr(3)
MAGIC = tl.constexpr(0x4338000000000000)  # the bits of 1.5 * 2^52


@triton.jit
def _scale(largest, BITS: tl.constexpr, SIGN: tl.constexpr):
    """2^s, or 2^-s with SIGN -1: s such that BITS bits hold the largest gradient. Made of a float64's bits."""
    exponent = (largest >> 23) - 126  # |grad| < 2^exponent
    return ((1023 + SIGN * (BITS - exponent)).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _fixed(grad, scale):
    """grad * scale as whole numbers: the low bits of a float64 that is near 1.5 * 2^52."""
    return (grad.to(tl.float64) * scale + 6755399441055744.0).to(tl.int64, bitcast=True) - MAGIC


@triton.jit
def _largest(grads, into, M, D: tl.constexpr, BLOCK_M: tl.constexpr):
    """into = max |grad| of this program's places, as the bits of a float, which order as whole numbers."""
    start, size = tl.program_id(0).to(tl.int64) * (BLOCK_M * D), tl.zeros((4 * BLOCK_M,), tl.float32)
    for part in tl.range(0, D, 4, loop_unroll_factor=5):  # five loads under way at a time
        k = part * BLOCK_M + tl.arange(0, 4 * BLOCK_M)
        grad = tl.load(grads + start + k, (k < BLOCK_M * D) & (start + k < M.to(tl.int64) * D), 0.0)
        size = tl.maximum(size, tl.where(grad == grad, tl.abs(grad), float("inf")))
    tl.atomic_max(into, tl.max(size, 0).to(tl.int32, bitcast=True))


@triton.jit
def _mark(
    ids, grads, more, owner, owners, joined, queue, counters, M, N,
    D: tl.constexpr, D2: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """owners[place] = the place that came first with its id; joined and queue: owners that have guests; and `_largest`.

    `owner` (N + M,) is -1 for each row before, and again after the step; behind them each place has a 0 of its own.
    Atomic operations on the same number wait for each other, and many places have the same id: so each place looks
    first, and who need not change anything goes to its own number instead.
    """
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = place < M
    row = tl.load(ids + place, inside, 0)
    seen = tl.load(owner + row, inside, 0)
    free = inside & (seen < 0)
    at = tl.where(free, row, N.to(tl.int64) + tl.minimum(place, M - 1))
    claimed = tl.atomic_cas(owner + at, tl.full((BLOCK_M,), -1, tl.int32), place, sem="relaxed")
    first = tl.where(free, claimed, seen)
    own = tl.where(first < 0, place, first)
    tl.store(owners + place, own, inside)
    guest = inside & (first >= 0)
    guest = guest & (tl.load(joined + own, guest, 1) == 0)
    known = tl.atomic_xchg(joined + own, tl.full((BLOCK_M,), 1, tl.int32), guest, sem="relaxed")
    new = (guest & (known == 0)).to(tl.int32)
    at = tl.atomic_add(counters, tl.sum(new, 0), sem="relaxed") + tl.cumsum(new, 0) - 1
    tl.store(queue + at, own, new > 0)
    _largest(grads, counters + 1, M, D, BLOCK_M)
    if D2:
        _largest(more, counters + 2, M, D2, BLOCK_M)


@triton.jit
def _loaded(
    weight, mean, square, last, row, mine,
    D: tl.constexpr, SM: tl.constexpr, SL: tl.constexpr, DECAYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows of weights and moments, and their last step; SM and SL: from a row of moments and of `last` to the next."""
    column = tl.arange(0, BLOCK_D)
    cells = mine[:, None] & (column < D)[None, :]
    there, here = row[:, None] * SM + column[None, :], row[:, None] * D + column[None, :]
    before = tl.zeros_like(row).to(tl.int32)
    if DECAYS:
        before = tl.load(last + row * SL, mine, 0)
    m, v, w = tl.load(mean + there, cells, 0.0), tl.load(square + there, cells, 0.0), tl.load(weight + here, cells, 0.0)
    return w, m, v, before


@triton.jit
def _moved(w, m, v, before, grad, mine, numbers, powers, rest1, rest2, DECAYS: tl.constexpr):
    """w -= rate m / (sqrt(v) + eps) with grad g and

        m = beta1^gap m + (1 - beta1) g        v = beta2^gap v + (1 - beta2) g^2

    gap: steps since the row was touched.
    """
    step, rate, eps = tl.load(numbers).to(tl.int32), tl.load(numbers + 2), tl.load(numbers + 3)
    gap = step - before if DECAYS else before + 1
    near, far = powers + 2 * (gap & (NEAR - 1)), powers + 2 * (NEAR + (gap >> NEAR_BITS))
    keep1 = (tl.load(near, mine, 0.0) * tl.load(far, mine, 0.0))[:, None]
    keep2 = (tl.load(near + 1, mine, 0.0) * tl.load(far + 1, mine, 0.0))[:, None]
    m = m * keep1 + rest1 * grad
    v = v * keep2 + rest2 * grad * grad
    return w - rate * m / (tl.sqrt(v) + eps), m, v


@triton.jit
def _store(
    weight, mean, square, last, row, mine, w, m, v, numbers,
    D: tl.constexpr, SM: tl.constexpr, SL: tl.constexpr, DECAYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What `_moved` made of what was `_loaded`, back in its place."""
    column = tl.arange(0, BLOCK_D)
    cells = mine[:, None] & (column < D)[None, :]
    there, here = row[:, None] * SM + column[None, :], row[:, None] * D + column[None, :]
    if DECAYS:
        tl.store(last + row * SL, tl.zeros_like(row).to(tl.int32) + tl.load(numbers).to(tl.int32), mine)
    tl.store(mean + there, m, cells)
    tl.store(square + there, v, cells)
    tl.store(weight + here, w, cells)


@triton.jit
def _gradient(grads, place, inside, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Gradients of these places: (BLOCK_M, BLOCK_D)."""
    column = tl.arange(0, BLOCK_D)
    cells = inside[:, None] & (column < D)[None, :]
    return tl.load(grads + place.to(tl.int64)[:, None] * D + column[None, :], cells, 0.0)


@triton.jit
def _add(sums, grad, own, guest, largest, D: tl.constexpr, BITS: tl.constexpr, BLOCK_D: tl.constexpr):
    """sums[own] += grad for guests."""
    column = tl.arange(0, BLOCK_D)
    cells = guest[:, None] & (column < D)[None, :]
    fixed = _fixed(grad, _scale(tl.load(largest), BITS, 1))
    tl.atomic_add(sums + own.to(tl.int64)[:, None] * D + column[None, :], fixed, cells, sem="relaxed")


@triton.jit
def _spread(
    ids, owner, owners, joined, counters, numbers, powers, M, rest1, rest2,
    grads, sums, weight, mean, square, last, more, sums2, weight2, mean2, square2, last2,
    D: tl.constexpr, SM: tl.constexpr, SL: tl.constexpr, D2: tl.constexpr, SM2: tl.constexpr, SL2: tl.constexpr,
    DECAYS: tl.constexpr, BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr,
):  # fmt: skip
    """Guests add to their owner's sums; owners without guests move. Leaves the counters where `_join` reads them."""
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = place < M
    row, own = tl.load(ids + place, inside, 0).to(tl.int64), tl.load(owners + place, inside, -1)
    alone = inside & (own == place) & (tl.load(joined + place, inside, 1) == 0)
    guest = inside & (own != place)
    # All loads of rows first: they are under way together.
    w, m, v, before = _loaded(weight, mean, square, last, row, alone, D, SM, SL, DECAYS, BLOCK_D)
    grad = _gradient(grads, place, inside, D, BLOCK_D)
    if D2:
        w2, m2, v2, before2 = _loaded(weight2, mean2, square2, last2, row, alone, D2, SM2, SL2, DECAYS, BLOCK_D2)
        grad2 = _gradient(more, place, inside, D2, BLOCK_D2)
        _add(sums2, grad2, own, guest, counters + 2, D2, BITS, BLOCK_D2)
        w2, m2, v2 = _moved(w2, m2, v2, before2, grad2, alone, numbers, powers, rest1, rest2, DECAYS)
    _add(sums, grad, own, guest, counters + 1, D, BITS, BLOCK_D)
    w, m, v = _moved(w, m, v, before, grad, alone, numbers, powers, rest1, rest2, DECAYS)
    # Several threads hold the same number: all must have read it before one writes.
    tl.debug_barrier()
    if D2:
        _store(weight2, mean2, square2, last2, row, alone, w2, m2, v2, numbers, D2, SM2, SL2, DECAYS, BLOCK_D2)
    _store(weight, mean, square, last, row, alone, w, m, v, numbers, D, SM, SL, DECAYS, BLOCK_D)
    tl.store(owner + row, tl.full((BLOCK_M,), -1, tl.int32), alone)
    if tl.program_id(0) == 0:
        for counter in tl.static_range(KEPT):
            tl.store(counters + KEPT + counter, tl.load(counters + counter))


@triton.jit
def _total(grads, sums, place, mine, largest, D: tl.constexpr, BITS: tl.constexpr, BLOCK_D: tl.constexpr):
    """An owner's grad and its guests' sums."""
    column = tl.arange(0, BLOCK_D)
    cells, at = mine[:, None] & (column < D)[None, :], place.to(tl.int64)[:, None] * D + column[None, :]
    top = tl.load(largest)
    fixed = _fixed(tl.load(grads + at, cells, 0.0), _scale(top, BITS, 1)) + tl.load(sums + at, cells, 0)
    total = (fixed.to(tl.float64) * _scale(top, BITS, -1)).to(tl.float32)
    return tl.where(top < 0x7F800000, total, float("nan"))


@triton.jit
def _clear(sums, place, mine, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """sums[place] = 0."""
    column = tl.arange(0, BLOCK_D)
    cells, at = mine[:, None] & (column < D)[None, :], place.to(tl.int64)[:, None] * D + column[None, :]
    tl.store(sums + at, tl.zeros_like(at), cells)


@triton.jit
def _join(
    ids, owner, queue, joined, counters, numbers, powers, M, rest1, rest2,
    grads, sums, weight, mean, square, last, more, sums2, weight2, mean2, square2, last2,
    D: tl.constexpr, SM: tl.constexpr, SL: tl.constexpr, D2: tl.constexpr, SM2: tl.constexpr, SL2: tl.constexpr,
    DECAYS: tl.constexpr, BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D2: tl.constexpr,
):  # fmt: skip
    """Owners in the queue move by their grad and their guests' sums. Leaves all as `_mark` must find it."""
    count = tl.load(counters + KEPT)
    for start in range(tl.program_id(0) * BLOCK_M, count, tl.num_programs(0) * BLOCK_M):
        number = start + tl.arange(0, BLOCK_M)
        mine = number < count
        place = tl.load(queue + number, mine, 0)
        row = tl.load(ids + place, mine, 0).to(tl.int64)
        w, m, v, before = _loaded(weight, mean, square, last, row, mine, D, SM, SL, DECAYS, BLOCK_D)
        grad = _total(grads, sums, place, mine, counters + KEPT + 1, D, BITS, BLOCK_D)
        if D2:
            w2, m2, v2, before2 = _loaded(weight2, mean2, square2, last2, row, mine, D2, SM2, SL2, DECAYS, BLOCK_D2)
            grad2 = _total(more, sums2, place, mine, counters + KEPT + 2, D2, BITS, BLOCK_D2)
            w2, m2, v2 = _moved(w2, m2, v2, before2, grad2, mine, numbers, powers, rest1, rest2, DECAYS)
        w, m, v = _moved(w, m, v, before, grad, mine, numbers, powers, rest1, rest2, DECAYS)
        tl.debug_barrier()  # as in `_spread`
        if D2:
            _store(weight2, mean2, square2, last2, row, mine, w2, m2, v2, numbers, D2, SM2, SL2, DECAYS, BLOCK_D2)
            _clear(sums2, place, mine, D2, BLOCK_D2)
        _store(weight, mean, square, last, row, mine, w, m, v, numbers, D, SM, SL, DECAYS, BLOCK_D)
        _clear(sums, place, mine, D, BLOCK_D)
        tl.store(owner + row, tl.full((BLOCK_M,), -1, tl.int32), mine)
        tl.store(joined + place, tl.zeros((BLOCK_M,), tl.int32), mine)
    if tl.program_id(0) == 0:
        for counter in tl.static_range(KEPT):
            tl.store(counters + counter, 0)


@dataclass(frozen=True)
class Table:
    """Weights (N, D) and their moments, float32, and with `paper` decay the last step of each row (N,), int32.

    Rows of moments and of `last` may lie apart, each row in one piece.
    """

    weight: Tensor
    mean: Tensor
    square: Tensor
    last: Tensor | None


@dataclass(frozen=True)
class Scratch:
    """What a step of M places needs beside tables of N rows, and its powers; between steps as `of` makes it."""

    owner: Tensor
    owners: Tensor
    joined: Tensor
    queue: Tensor
    counters: Tensor
    sums: list[Tensor]
    powers: Tensor

    @classmethod
    def of(cls, tables: Sequence[Table], places: int, betas: tuple[float, float]) -> Scratch:
        device, rows = tables[0].weight.device, len(tables[0].weight)

        def whole(*shape: int, value: int = 0, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        sums = [whole(places, table.weight.shape[1], dtype=torch.int64) for table in tables]
        owner, counters = whole(rows + places), whole(2 * KEPT.value)
        owner[:rows] = -1
        return cls(owner, whole(places), whole(places), whole(places), counters, sums, _powers(betas, device))


def _powers(betas: tuple[float, float], device: torch.device) -> Tensor:
    """beta1^k and beta2^k for k = 0 to 1023, then for k = 0, 1024, 2048, ...: all steps."""
    near, far = torch.arange(NEAR.value), torch.arange(0, STEPS, NEAR.value)
    return torch.pow(torch.tensor([betas], dtype=torch.float64), torch.cat([near, far])[:, None]).float().to(device)


def adam_rows(
    tables: Sequence[Table],
    ids: Tensor,
    values: Sequence[Tensor],
    numbers: Tensor,
    betas: tuple[float, float],
    scratch: Scratch,
) -> None:
    """Sums the gradients `values` (M, D) of each distinct id of `ids` (M,), for one or two tables, and moves that row.

    `numbers` are (step, lr, rate, eps) on the device, the step counted from 1: see Adam.numbers.
    """
    places, dims = len(ids), [table.weight.shape[1] for table in tables]
    sizes: dict[str, Any] = {"D": dims[0], "D2": dims[1] if len(dims) > 1 else 0}
    marks = scratch.owner, scratch.owners, scratch.joined, scratch.queue, scratch.counters
    _mark[(triton.cdiv(places, MARKED),)](
        ids, values[0], values[-1], *marks, places, len(tables[0].weight), BLOCK_M=MARKED, **sizes
    )
    given: list[Tensor] = []
    for (table, grads, sums), number in zip(zip(tables, values, scratch.sums, strict=True), ("", "2"), strict=False):
        last = scratch.owner if table.last is None else table.last
        given += [grads, sums, table.weight, table.mean, table.square, last]
        sizes |= {f"SM{number}": table.mean.stride(0), f"SL{number}": last.stride(0)}
        sizes[f"BLOCK_D{number}"] = triton.next_power_of_2(table.weight.shape[1])
    if len(tables) == 1:
        given, sizes = given + given, sizes | {"SM2": 1, "SL2": 1, "BLOCK_D2": 1}
    sizes |= {"BLOCK_M": max(1, min(TALL, TILE // sizes["BLOCK_D"])), "num_warps": WARPS}
    sizes |= {"BITS": min(BITS, 61 - max(1, places - 1).bit_length()), "DECAYS": tables[0].last is not None}
    shared = scratch.joined, scratch.counters, numbers, scratch.powers, places, 1 - betas[0], 1 - betas[1]
    grid = triton.cdiv(places, sizes["BLOCK_M"])
    _spread[(grid,)](ids, scratch.owner, scratch.owners, *shared, *given, **sizes)
    _join[(min(grid, PROGRAMS),)](ids, scratch.owner, scratch.queue, *shared, *given, **sizes)
