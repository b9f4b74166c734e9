"""Inputs of the GPU's kernels over pairs: the dtype of matrix products, vectors field by field, sizes of tiles."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 64  # in a tile


def padded(size: int, least: int = 16) -> int:
    """A side of a tile: the next power of two."""
    return max(least, 1 << (size - 1).bit_length())


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of matrix products: autocast's if that is on, else its own."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def by_field(v: Tensor) -> Tensor:
    """v (B, F, D) -> (F, B, D) in that dtype."""
    return computed(v).transpose(0, 1).contiguous()
