"""A convolution as one matrix product (GPU), and its weights in the layout that the product needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fieldwise.loops.gpu import computed
from fieldwise.parts.ways import Way


def by_window(convolution: nn.Module) -> Tensor:
    """Its weights in the order of a window's numbers, vector after vector: (C, width D)."""
    weight: Tensor = convolution.weight  # type: ignore[assignment]
    return weight.transpose(1, 2).flatten(1)


def _by_product(convolution: nn.Module, x: Tensor) -> Tensor:
    """The convolution by a matrix product: cuDNN would first copy x into another layout."""
    width = convolution.weight.shape[2]  # type: ignore[index, unused-ignore]
    steps, rows = x.shape[2] - width + 1, computed(x).transpose(1, 2)
    windows = torch.cat([rows[:, t : t + steps] for t in range(width)], dim=2)
    return (windows @ by_window(convolution).T).transpose(1, 2)


PRODUCTS = Way("one product", lambda convolution, x: "" if x.is_cuda else "not on a GPU", _by_product)
