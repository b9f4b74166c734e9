"""Weights of fewer bits than float32: how a step writes them back."""

from __future__ import annotations

import torch
from torch import Tensor

# The bits of a float32 that bfloat16 leaves out.
LEFT_OUT = 16


def narrow(weight: Tensor) -> bool:
    """Whether the weights have fewer bits than what an optimiser computes with."""
    return weight.dtype == torch.bfloat16


def wide(weight: Tensor) -> torch.dtype:
    """The type of an optimiser's numbers for these weights: float32 for narrow ones, else their own."""
    return torch.float32 if narrow(weight) else weight.dtype


def rounded(values: Tensor) -> Tensor:
    """float32 -> bfloat16, up or down at random, so that the expected value is the number itself.

    bfloat16 has eight bits: rounded to the nearest, a weight would not move at all by a step of less than a 512th of
    it. torch's generator draws, so that a step that is repeated after a kill rounds alike.

    >>> values = torch.full((10_000,), 1 + 2.0**-9)  # between 1 and 1 + 2 ** -7
    >>> sorted(set(rounded(values).tolist())), round(rounded(values).float().mean().item(), 3)
    ([1.0, 1.0078125], 1.002)
    """
    bits = values.contiguous().view(torch.int32)
    # The sign is a bit of its own, so that a larger number is always farther from zero.
    moved = bits + torch.randint_like(bits, 1 << LEFT_OUT)
    return (moved >> LEFT_OUT << LEFT_OUT).view(torch.float32).bfloat16()
