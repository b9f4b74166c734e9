"""How rows come from the workers that have them: row numbers go there, rows come back, gradients go there again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fieldwise.train import distributed


@dataclass(frozen=True)
class Route:
    """The way of a batch's lookups (B, n).

    This worker takes `taken[w]` distinct rows of worker w, in the order of ranks, and gives it `given[w]` of its own:
    `rows` (M,), counted from its first. `which` (B, n) is the place of each lookup among the distinct rows.
    """

    taken: list[int]
    given: list[int]
    rows: Tensor
    which: Tensor


class Router:
    """Finds the way to the rows of tables of `size` rows, of which worker w has those from number w * `each` on.

    Tables that are looked up by the same ids, a linear part's and the vectors', have one router: ids are sent once.
    """

    def __init__(self, size: int) -> None:
        self.size, self.each = size, share(size)
        self.known: tuple[Tensor, Route] | None = None

    def route(self, ids: Tensor, offsets: Tensor) -> Route:
        """The way of these ids (B, n), which count from their fields' first rows."""
        # By identity: it is the same on all workers, and a worker that finds other ids equal would leave out a message.
        if self.known is None or self.known[0] is not ids:
            self.known = ids, self._route(ids + offsets)
        return self.known[1]

    def _route(self, places: Tensor) -> Route:
        distinct, which = torch.unique(places, return_inverse=True)
        starts = torch.arange(distributed.count() + 1, device=places.device) * self.each
        taken = torch.searchsorted(distinct, starts).diff()
        own, others = torch.stack([taken, distributed.swapped(taken)]).tolist()
        # Row numbers that fit in 32 bits halve the message.
        asked = distributed.exchanged(distinct.int() if self.size < 2**31 else distinct, own, others)
        return Route(own, others, asked.long() - distributed.rank() * self.each, which)


class Fetched(torch.autograd.Function):
    """The distinct rows (U, D) of a route, from the tables' parts `own` (n, D). Narrow numbers travel as they are and
    become float32 here; gradients are float32, and sparse where the rows are."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, route: Route) -> Tensor:
        ctx.route, ctx.shape = route, own.shape
        rows = distributed.exchanged(own.index_select(0, route.rows), route.given, route.taken)
        return rows if rows.dtype == torch.float64 else rows.float()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override, unused-ignore]
        route = ctx.route
        values = distributed.exchanged(grad, route.taken, route.given)
        # A row that several workers asked for is there several times, in the order of ranks: optimisers add these up.
        return torch.sparse_coo_tensor(route.rows[None], values, ctx.shape, check_invariants=False), None


def fetched(own: Tensor, route: Route) -> Tensor:
    """The row of each lookup of a route: (B, n, D)."""
    distinct: Tensor = Fetched.apply(own, route)  # type: ignore[no-untyped-call]
    return nn.functional.embedding(route.which, distinct)


def share(size: int) -> int:
    """How many of a table's rows each worker has; the last one has those that remain."""
    return -(-size // distributed.count())
