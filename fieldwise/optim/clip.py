"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fieldwise.optim.rows import check


@torch.no_grad()
def clip(
    params: Iterable[Tensor],
    max_norm: float,
    cut: Iterable[Tensor] = (),
    summed: Callable[[Tensor], Tensor] = lambda square: square,
) -> float:
    """Scales the gradients so that the norm of all together is at most max_norm; returns the norm before.

    Duplicate rows of sparse gradients are summed first, and stay summed. A norm that is not a number leaves the
    gradients as they are; max_norm = inf only measures. Of tables `cut` over workers each worker has its rows alone,
    and `summed` adds up what all workers give.
    """
    check(max_norm > 0, "max_norm must be positive", max_norm)
    parts, rows = _gradients(params), _gradients(cut)
    if not parts and not rows:
        return 0.0
    norms = [_norm(parts)] if parts else []
    if rows:
        norms.append(summed(_norm(rows).square()).sqrt())
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    if max_norm < norm < math.inf:
        torch._foreach_mul_(parts + rows, max_norm / norm)
    return norm


def _gradients(params: Iterable[Tensor]) -> list[Tensor]:
    """The numbers of the gradients that there are."""
    found = []
    for weight in params:
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:
            weight.grad = weight.grad.coalesce()
            found.append(weight.grad._values())
        else:
            found.append(weight.grad)
    return found


def _norm(parts: list[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(parts)))
    return norm
