"""CowClip: each row of a table has a gradient no longer than its own length times its count in the batch.

Zheng et al., "CowClip: Reducing CTR Prediction Model Training Time from 12 hours to 10 minutes on 1 GPU" (AAAI 2023),
algorithm 1. For a row w that occurs cnt times in the batch and the gradient g of the mean loss by it, without L2:

    g *= min(1, cnt max(r |w|, least) / |g|)

The authors' code (github.com/bytedance/LargeBatchCTR) differs from that, and here

    least (zeta) is a length, as in the formula; the code multiplies it by r and by the root of the vector's size
    L2 is added after the clip, so that it shrinks every row alike; in the code its gradient is cut along
    tables of single numbers, the linear part's, are not clipped, as in the code: such a weight passes through 0
    an occurrence is a place of the batch with a gradient: the padding of a set and rows of weight 0 are none

The loss is a mean, as in the code: g is cnt / B times the mean gradient of the row's occurrences, so that this mean is
cut at B max(r |w|, least). Batches s times as large cut s times later, and r / s would cut as the small ones did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fieldwise.optim.rows import Orders, check, order_of

# Distinct ids (U,), ascending, and their summed gradients with their counts behind them (U, D + 1).
Summed = tuple[Tensor, Tensor]
BITS = 50  # of a gradient as a whole number, as in triton_adam.py


@torch.no_grad()
def clip_rows(
    tables: Iterable[Tensor],
    ratio: float,
    least: float,
    together: Callable[[list[Tensor], list[Summed]], list[Summed]] | None = None,
) -> None:
    """Scales the sparse gradients of tables (N, D > 1) so that each row has at most count * max(ratio * |w|, least).

    Gradients keep their places: those of one row are scaled alike. Of several workers, each of which has the gradients
    of its rows of the batch, `together` adds up what all have of each row.
    """
    check(ratio > 0, "row_clip must be positive", ratio)
    check(least >= 0, "row_clip_least must not be negative", least)
    clipped = [table for table in tables if table.grad is not None and table.grad.is_sparse and table.shape[1] > 1]
    orders: Orders = {}
    on_cpu = together is not None or all(table.device.type == "cpu" for table in clipped)
    grads: list[Any] = [table.grad for table in clipped]
    found = [_summed(grad, orders) if on_cpu else _summed_in_place(grad) for grad in grads]
    for table, (ids, sums) in zip(clipped, together(clipped, found) if together else found, strict=True):
        _scale(table, ids, _factors(table, ids, sums, ratio, least))


@contextmanager
def apart(tables: Sequence[Tensor]) -> Iterator[None]:
    """Gradients that come within are kept apart from those of before, and added to them at the end, place by place."""
    before = [table.grad for table in tables]
    for table in tables:
        table.grad = None
    yield
    for table, old in zip(tables, before, strict=True):
        table.grad = _added(old, table.grad)


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    if one.is_sparse and other.is_sparse and one._nnz() == other._nnz():
        # Both come from the same lookup, so that their places are the same.
        values = one._values() + other._values()
        return torch.sparse_coo_tensor(one._indices(), values, one.shape, check_invariants=False)
    return other + one


def _factors(table: Tensor, ids: Tensor, sums: Tensor, ratio: float, least: float) -> Tensor:
    """What each row's gradient is scaled by: (U,)."""
    rows = table.detach().index_select(0, ids).to(sums.dtype)
    most = sums[:, -1] * torch.linalg.vector_norm(rows, dim=1).mul_(ratio).clamp_(min=least)
    norms = torch.linalg.vector_norm(sums[:, :-1], dim=1)
    # A row without a gradient would divide by zero.
    return torch.where(norms > most, most / norms, torch.ones_like(norms))


def _scale(table: Tensor, ids: Tensor, factors: Tensor) -> None:
    """Scales the gradient of each place by its row's factor."""
    assert table.grad is not None
    own, values = table.grad._indices(), table.grad._values()
    scaled = values * factors.index_select(0, torch.searchsorted(ids, own[0]))[:, None]
    # Other tensors may share the memory of `values`, tables that of `own`, by which the optimiser knows equal ids.
    table.grad = torch.sparse_coo_tensor(own, scaled, table.shape, check_invariants=False)


def _present(values: Tensor) -> Tensor:
    """Which places (M, D) have a gradient: (M, 1)."""
    return (values != 0).any(dim=1, keepdim=True)


def _summed(grad: Tensor, orders: Orders) -> Summed:
    ids, order, starts = order_of(grad, orders)
    values = grad._values()
    return ids, embedding_bag(order, torch.cat([values, _present(values).to(values.dtype)], 1), starts, mode="sum")


def _summed_in_place(grad: Tensor) -> Summed:
    """As `_summed`, for a CUDA graph: no shape depends on the ids (U is M, the last id fills up), no host is asked.

    Sums are of whole numbers, gradient * 2^s, because threads come in any order, and many to one place.
    """
    ids, values = grad._indices()[0], grad._values()
    rows, _ = torch.sort(ids)
    again = torch.cat([torch.zeros_like(rows[:1], dtype=torch.bool), rows[1:] == rows[:-1]])
    distinct, _ = torch.sort(torch.where(again, rows[-1:], rows))
    _, exponent = torch.frexp(values.abs().amax())
    scale = torch.pow(2.0, (min(BITS, 62 - len(ids).bit_length()) - exponent).double())
    whole = torch.cat([(values.double() * scale).round_().long(), _present(values).long()], 1)
    sums = torch.zeros_like(whole).index_add_(0, torch.searchsorted(distinct, ids), whole)
    return distinct, torch.cat([sums[:, :-1].double() / scale, sums[:, -1:]], 1).to(values.dtype)
