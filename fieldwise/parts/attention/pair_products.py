"""v_i * v_j of all pairs without copies of their vectors (CPU).

Pairs of one first field i lie side by side, and so do their second fields i+1 ... F-1: slices do for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwise.parts.ways import Way


def first_fields(fields: int) -> Iterator[tuple[int, slice]]:
    """Each first field and where its pairs are.

    >>> list(first_fields(3))
    [(0, slice(0, 2, None)), (1, slice(2, 3, None))]
    """
    start = 0
    for i in range(fields - 1):
        yield i, slice(start, start + fields - 1 - i)
        start += fields - 1 - i


class PairProducts(torch.autograd.Function):
    """v_i * v_j of all pairs: (B, F, D) -> (B, P, D)."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        fields = v.shape[1]
        products = v.new_empty(v.shape[0], fields * (fields - 1) // 2, v.shape[2])
        for i, places in first_fields(fields):
            torch.mul(v[:, i, None], v[:, i + 1 :], out=products[:, places])
        return products

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override, unused-ignore]
        (v,) = ctx.saved_tensors
        found = torch.zeros_like(v)
        for i, places in first_fields(v.shape[1]):
            found[:, i + 1 :].addcmul_(grad[:, places], v[:, i, None].expand(-1, v.shape[1] - 1 - i, -1))
            found[:, i] += (grad[:, places] * v[:, i + 1 :]).sum(dim=1)
        return found


def _against(part: object, v: Tensor) -> str:
    if torch.compiler.is_compiling():
        return "the model is traced"
    return "" if v.device.type == "cpu" else "not on a CPU"


def _by_slices(part: object, v: Tensor) -> Tensor:
    found: Tensor = PairProducts.apply(v)  # type: ignore[no-untyped-call]
    return found


SLICES = Way("slices", _against, _by_slices)
