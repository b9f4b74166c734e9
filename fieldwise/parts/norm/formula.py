"""A norm and the activation after it, in hidden layers of the DNN."""

from __future__ import annotations

from torch import Tensor, nn

from fieldwise.parts.norm.compiled import LOOPS
from fieldwise.parts.ways import chosen


@chosen(LOOPS)
def activated(x: Tensor, norm: nn.Module, activation: nn.Module) -> Tensor:
    """The norm and the activation of a layer's units (B, H)."""
    found: Tensor = activation(norm(x))
    return found
