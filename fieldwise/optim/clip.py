"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fieldwise.optim.rows import check


@torch.no_grad()
def clip(params: Iterable[Tensor], max_norm: float) -> float:
    """Scales the gradients so that the norm of all together is at most max_norm; returns the norm before.

    Duplicate rows of sparse gradients are summed first, and stay summed. A norm that is not a number leaves the
    gradients as they are; max_norm = inf only measures.
    """
    check(max_norm > 0, "max_norm must be positive", max_norm)
    parts = []
    for weight in params:
        if weight.grad is None:
            continue
        if weight.grad.is_sparse:
            weight.grad = weight.grad.coalesce()
            parts.append(weight.grad._values())
        else:
            parts.append(weight.grad)
    if not parts:
        return 0.0
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(parts))))
    if max_norm < norm < math.inf:
        torch._foreach_mul_(parts, max_norm / norm)
    return norm
