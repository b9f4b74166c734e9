"""Adam on the touched rows of tables, on a GPU (Triton): no sort, static shapes, the same bits on every run.

The plain version is optim.Adam.update on gathered rows; this one equals it to rounding. A batch has M places, each with
a row id, and many places have the same one. The first place to claim a row becomes its owner, the others its guests
(`_mark`). Guests add their gradients to the owner's sums, while owners without guests move their rows (`_spread`);
owners with guests move last (`_join`). The sums are of integers, gradient * 2^s with one s for the batch, because a sum
of integers does not depend on the order in which threads come.

One or two tables that were looked up by the same ids, such as a linear part's and the vectors', move in the same
kernels, which take their arguments in named tuples: a `Rows` for each table, `Marks` and `Step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 512  # numbers of a program
TALL = 128  # rows of a program at most
MARKED = 256  # places of a program of `_mark`
WARPS = 4
PROGRAMS = 4096  # of `_join`, which is launched before it is known how many rows there are
BITS = 50  # of an integer at most: up to 51, the mantissa of a float64 holds it exactly
# beta^gap = beta^(low bits of gap) beta^(high bits of gap), both from a table: in float32, powers would lose three
# digits over a gap of 1000 steps, and taking them in float64 would cost more than all else.
NEAR_BITS = tl.constexpr(10)
NEAR = tl.constexpr(1 << 10)
STEPS = 1 << 24  # that a float32 can count
# Counters: how many owners have guests, the largest gradient of each table; behind them the copies that `_join` reads.
KEPT = tl.constexpr(3)
MAGIC = tl.constexpr(0x4338000000000000)  # the bits of 1.5 * 2^52


class Marks(NamedTuple):
    """Which place owns each row. Between steps `owner` and `joined` are as `Scratch.of` makes them."""

    owner: Tensor  # (N + M,) the place that owns each row, -1 between steps; behind them a 0 for each place
    owners: Tensor  # (M,) the place that owns this place's row
    joined: Tensor  # (M,) 1 for an owner that has guests
    queue: Tensor  # (M,) the owners that have guests
    counters: Tensor  # (2 KEPT,)


class Rows(NamedTuple):
    """A table (N, D), its optimiser state and its gradients."""

    grads: Tensor  # (M, D)
    sums: Tensor  # (M, D) int64, of guests' gradients
    weight: Tensor
    mean: Tensor
    square: Tensor
    last: Tensor  # (N,)
    number: tl.constexpr  # 0 for the first table, 1 for the second
    dim: tl.constexpr  # D
    block: tl.constexpr  # the power of two that holds D
    stride: tl.constexpr  # from a row of moments to the next
    last_stride: tl.constexpr


class Step(NamedTuple):
    """The numbers of an update."""

    numbers: Tensor  # (step, lr, rate, eps)
    powers: Tensor  # of both betas
    rest1: float  # 1 - beta1
    rest2: float  # 1 - beta2
    decays: tl.constexpr  # whether moments decay by the steps since the row was touched


@triton.jit
def _scale(largest, BITS: tl.constexpr, SIGN: tl.constexpr):
    """2^s, or 2^-s with SIGN -1: s such that BITS bits hold the largest gradient. Made of a float64's bits."""
    exponent = (largest >> 23) - 126  # |grad| < 2^exponent
    return ((1023 + SIGN * (BITS - exponent)).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _fixed(grad, scale):
    """grad * scale as integers: the low bits of a float64 that is near 1.5 * 2^52."""
    return (grad.to(tl.float64) * scale + 6755399441055744.0).to(tl.int64, bitcast=True) - MAGIC


@triton.jit
def _cells(table, rows, mine, stride):
    """Where the numbers of these rows lie, in memory whose rows are `stride` apart, and which of them count."""
    column = tl.arange(0, table.block)
    return rows.to(tl.int64)[:, None] * stride + column[None, :], mine[:, None] & (column < table.dim)[None, :]


@triton.jit
def _largest(table, marks, M, BLOCK_M: tl.constexpr):
    """The counter of this table = max |grad| of all places, as the bits of a float, which order as integers do."""
    D: tl.constexpr = table.dim
    start, size = tl.program_id(0).to(tl.int64) * (BLOCK_M * D), tl.zeros((4 * BLOCK_M,), tl.float32)
    for part in tl.range(0, D, 4, loop_unroll_factor=5):  # five loads under way at a time
        k = part * BLOCK_M + tl.arange(0, 4 * BLOCK_M)
        grad = tl.load(table.grads + start + k, (k < BLOCK_M * D) & (start + k < M.to(tl.int64) * D), 0.0)
        size = tl.maximum(size, tl.where(grad == grad, tl.abs(grad), float("inf")))
    tl.atomic_max(marks.counters + 1 + table.number, tl.max(size, 0).to(tl.int32, bitcast=True))


@triton.jit
def _mark(ids, tables, marks, M, N, BLOCK_M: tl.constexpr):
    """Finds the owner of each place, queues the owners that have guests, and takes the largest gradient of each table.

    Atomic operations on the same number wait for each other, and many places have the same id: so each place reads
    first, and one that need not change anything goes to a spare slot instead.
    """
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = place < M
    row = tl.load(ids + place, inside, 0)
    seen = tl.load(marks.owner + row, inside, 0)
    free = inside & (seen < 0)
    at = tl.where(free, row, N.to(tl.int64) + tl.minimum(place, M - 1))
    claimed = tl.atomic_cas(marks.owner + at, tl.full((BLOCK_M,), -1, tl.int32), place, sem="relaxed")
    first = tl.where(free, claimed, seen)
    own = tl.where(first < 0, place, first)
    tl.store(marks.owners + place, own, inside)
    guest = inside & (first >= 0)
    guest = guest & (tl.load(marks.joined + own, guest, 1) == 0)
    known = tl.atomic_xchg(marks.joined + own, tl.full((BLOCK_M,), 1, tl.int32), guest, sem="relaxed")
    new = (guest & (known == 0)).to(tl.int32)
    at = tl.atomic_add(marks.counters, tl.sum(new, 0), sem="relaxed") + tl.cumsum(new, 0) - 1
    tl.store(marks.queue + at, own, new > 0)
    for t in tl.static_range(len(tables)):
        _largest(tables[t], marks, M, BLOCK_M)


@triton.jit
def _loaded(table, row, mine, step):
    """Rows of weights and moments, and the step at which each row was touched last."""
    there, cells = _cells(table, row, mine, table.stride)
    here, _ = _cells(table, row, mine, table.dim)
    before = tl.zeros_like(row).to(tl.int32)
    if step.decays:
        before = tl.load(table.last + row * table.last_stride, mine, 0)
    m, v = tl.load(table.mean + there, cells, 0.0), tl.load(table.square + there, cells, 0.0)
    return tl.load(table.weight + here, cells, 0.0), m, v, before


@triton.jit
def _moved(held, grad, mine, step):
    """w -= rate m / (sqrt(v) + eps) for the rows that `_loaded` found, with grad g and

        m = beta1^gap m + (1 - beta1) g        v = beta2^gap v + (1 - beta2) g^2

    gap: steps since the row was touched.
    """
    w, m, v, before = held
    number, rate, eps = tl.load(step.numbers).to(tl.int32), tl.load(step.numbers + 2), tl.load(step.numbers + 3)
    gap = number - before if step.decays else before + 1
    near, far = step.powers + 2 * (gap & (NEAR - 1)), step.powers + 2 * (NEAR + (gap >> NEAR_BITS))
    keep1 = (tl.load(near, mine, 0.0) * tl.load(far, mine, 0.0))[:, None]
    keep2 = (tl.load(near + 1, mine, 0.0) * tl.load(far + 1, mine, 0.0))[:, None]
    m = m * keep1 + step.rest1 * grad
    v = v * keep2 + step.rest2 * grad * grad
    return w - rate * m / (tl.sqrt(v) + eps), m, v


@triton.jit
def _store(table, row, mine, moved, step):
    """Writes what `_moved` returned."""
    w, m, v = moved
    there, cells = _cells(table, row, mine, table.stride)
    here, _ = _cells(table, row, mine, table.dim)
    if step.decays:
        number = tl.zeros_like(row).to(tl.int32) + tl.load(step.numbers).to(tl.int32)
        tl.store(table.last + row * table.last_stride, number, mine)
    tl.store(table.mean + there, m, cells)
    tl.store(table.square + there, v, cells)
    tl.store(table.weight + here, w, cells)


@triton.jit
def _gradient(table, place, inside):
    """Gradients of these places: (BLOCK_M, block)."""
    at, cells = _cells(table, place, inside, table.dim)
    return tl.load(table.grads + at, cells, 0.0)


@triton.jit
def _add(table, grad, own, guest, marks, BITS: tl.constexpr):
    """sums[own] += grad for guests."""
    at, cells = _cells(table, own, guest, table.dim)
    largest = tl.load(marks.counters + 1 + table.number)
    tl.atomic_add(table.sums + at, _fixed(grad, _scale(largest, BITS, 1)), cells, sem="relaxed")


@triton.jit
def _total(table, place, mine, marks, BITS: tl.constexpr):
    """The gradients of owners and of their guests, summed."""
    at, cells = _cells(table, place, mine, table.dim)
    largest = tl.load(marks.counters + KEPT + 1 + table.number)
    fixed = _fixed(tl.load(table.grads + at, cells, 0.0), _scale(largest, BITS, 1)) + tl.load(table.sums + at, cells, 0)
    total = (fixed.to(tl.float64) * _scale(largest, BITS, -1)).to(tl.float32)
    return tl.where(largest < 0x7F800000, total, float("nan"))


@triton.jit
def _clear(table, place, mine):
    """sums[place] = 0."""
    at, cells = _cells(table, place, mine, table.dim)
    tl.store(table.sums + at, tl.zeros_like(at), cells)


@triton.jit
def _spread(ids, tables, marks, step, M, BITS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Guests add to their owner's sums; owners without guests move. Copies the counters for `_join`."""
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = place < M
    row, own = tl.load(ids + place, inside, 0).to(tl.int64), tl.load(marks.owners + place, inside, -1)
    alone = inside & (own == place) & (tl.load(marks.joined + place, inside, 1) == 0)
    guest = inside & (own != place)
    # All loads of rows first: they are under way together.
    held = [_loaded(table, row, alone, step) for table in tables]
    grads = [_gradient(table, place, inside) for table in tables]
    for t in tl.static_range(len(tables)):
        _add(tables[t], grads[t], own, guest, marks, BITS)
    moved = [_moved(held[table.number], grads[table.number], alone, step) for table in tables]
    # Several threads hold the same number: all must have read it before one writes.
    tl.debug_barrier()
    for t in tl.static_range(len(tables)):
        _store(tables[t], row, alone, moved[t], step)
    tl.store(marks.owner + row, tl.full((BLOCK_M,), -1, tl.int32), alone)
    if tl.program_id(0) == 0:
        for counter in tl.static_range(KEPT):
            tl.store(marks.counters + KEPT + counter, tl.load(marks.counters + counter))


@triton.jit
def _join(ids, tables, marks, step, BITS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Owners in the queue move by their own and their guests' gradients. Leaves all as `_mark` must find it."""
    count = tl.load(marks.counters + KEPT)
    for start in range(tl.program_id(0) * BLOCK_M, count, tl.num_programs(0) * BLOCK_M):
        number = start + tl.arange(0, BLOCK_M)
        mine = number < count
        place = tl.load(marks.queue + number, mine, 0)
        row = tl.load(ids + place, mine, 0).to(tl.int64)
        held = [_loaded(table, row, mine, step) for table in tables]
        grads = [_total(table, place, mine, marks, BITS) for table in tables]
        moved = [_moved(held[table.number], grads[table.number], mine, step) for table in tables]
        tl.debug_barrier()  # as in `_spread`
        for t in tl.static_range(len(tables)):
            _store(tables[t], row, mine, moved[t], step)
            _clear(tables[t], place, mine)
        tl.store(marks.owner + row, tl.full((BLOCK_M,), -1, tl.int32), mine)
        tl.store(marks.joined + place, tl.zeros((BLOCK_M,), tl.int32), mine)
    if tl.program_id(0) == 0:
        for counter in tl.static_range(KEPT):
            tl.store(marks.counters + counter, 0)


@dataclass(frozen=True)
class Table:
    """Weights (N, D) and their moments, float32, and with `paper` decay the last step of each row (N,), int32.

    Rows of moments and of `last` may lie apart; each row is contiguous.
    """

    weight: Tensor
    mean: Tensor
    square: Tensor
    last: Tensor | None


@dataclass(frozen=True)
class Scratch:
    """Memory for a step of M places beside the tables; between steps it is as `of` makes it."""

    marks: Marks
    sums: list[Tensor]
    powers: Tensor

    @classmethod
    def of(cls, tables: Sequence[Table], places: int, betas: tuple[float, float]) -> Scratch:
        device, rows = tables[0].weight.device, len(tables[0].weight)

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        sums = [zeros(places, table.weight.shape[1], dtype=torch.int64) for table in tables]
        owner = zeros(rows + places)
        owner[:rows] = -1
        marks = Marks(owner, zeros(places), zeros(places), zeros(places), zeros(2 * KEPT.value))
        return cls(marks, sums, _powers(betas, device))


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
    places, marks = len(ids), scratch.marks
    rows = tuple(_rows(*each, scratch) for each in zip(range(len(tables)), tables, values, strict=True))
    decays = tl.constexpr(tables[0].last is not None)
    step = Step(numbers, scratch.powers, 1 - betas[0], 1 - betas[1], decays)
    tall = max(1, min(TALL, TILE // rows[0].block.value))
    options = {"BITS": min(BITS, 61 - max(1, places - 1).bit_length()), "BLOCK_M": tall, "num_warps": WARPS}
    grid = triton.cdiv(places, tall)
    _mark[(triton.cdiv(places, MARKED),)](ids, rows, marks, places, len(tables[0].weight), BLOCK_M=MARKED)
    _spread[(grid,)](ids, rows, marks, step, places, **options)
    _join[(min(grid, PROGRAMS),)](ids, rows, marks, step, **options)


def _rows(number: int, table: Table, grads: Tensor, scratch: Scratch) -> Rows:
    """A table as the kernels take it; without `last`, they get memory that they do not touch."""
    last, dim = scratch.marks.owner if table.last is None else table.last, table.weight.shape[1]
    constants = number, dim, triton.next_power_of_2(dim), table.mean.stride(0), last.stride(0)
    number, dim, block, stride, last_stride = map(tl.constexpr, constants)
    sums = scratch.sums[number]
    return Rows(grads, sums, table.weight, table.mean, table.square, last, number, dim, block, stride, last_stride)
