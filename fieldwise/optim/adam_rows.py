"""Adam on the touched rows of a table by a compiled loop (CPU)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldwise.loops import running


def adam_rows(
    weight: Tensor,
    mean: Tensor,
    square: Tensor,
    last: Tensor | None,
    order: tuple[Tensor, Tensor, Tensor],
    values: Tensor,
    *,
    step: int,
    betas: tuple[float, float],
    rate: float,
    eps: float,
) -> None:
    """Sums the gradients `values` (M, D) of each distinct row and moves that row: tables (N, D).

    `order` holds the distinct row ids (U,), the positions of `values` sorted by id (M,), and where each id
    starts there (U,). With `last` (N,), moments first decay by the steps since the row was touched.
    """
    from fieldwise.optim.adam_loops import Order, Tables
    from fieldwise.optim.adam_loops import adam_rows as loop
    from fieldwise.optim.moves import Numbers

    gaps = last if last is not None else torch.empty(0, dtype=torch.int32)
    sorted_places = Order(*(part.numpy() for part in order))
    tables = Tables(*(tensor.detach().numpy() for tensor in (weight, mean, square, gaps, values)))
    numbers = Numbers(step, *betas, rate, eps)

    def part(low: int, high: int, thread: int) -> None:
        loop(sorted_places, low, high, tables, powers(*betas), numbers)

    rows = len(sorted_places.unique)
    running.on_threads(part, rows, min(torch.get_num_threads(), max(1, rows // 1000)))


@cache
def powers(beta1: float, beta2: float) -> Any:
    """beta^gap for the gaps that most rows have: computing powers would cost more than everything else."""
    return np.power([[beta1, beta2]], np.arange(4096)[:, None])
