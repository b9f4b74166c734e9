"""AFM's attention on a GPU: a Triton kernel for scoring, and for training sums that torch's compiler fuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fieldwise.parts.ways import Way, no_score_kernels


def _by_triton(part: Any, v: Tensor) -> Tensor:
    from fieldwise.parts.attention.triton import attention

    last = part.score.new_ones(v.shape[2]) if part.projection is None else part.projection
    return attention(v, part.first, part.second, part.attend, part.score, last, part.temperature)


def _by_sums(part: Any, v: Tensor) -> Tensor:
    """The formula, with sums instead of products with matrices of one column."""
    products: Tensor = part.products(v)
    scores = (torch.relu(part.attend(products)) * part.score).sum(dim=2)
    weights: Tensor = part.dropout(torch.softmax(scores / part.temperature, dim=1))
    found: Tensor = part.projected((weights[:, :, None] * products).sum(dim=1))
    return found


TRITON = Way("Triton, for scores", no_score_kernels, _by_triton)
FUSED_SUMS = Way("fused sums", lambda part, v: "" if v.is_cuda else "not on a GPU", _by_sums)
