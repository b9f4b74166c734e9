"""A norm and the activation behind it: hidden layers of the DNN and of micro networks."""

from __future__ import annotations

from torch import Tensor, nn

from fieldwise.parts.norm.compiled import LAYER_LOOPS, PAIR_LOOPS
from fieldwise.parts.ways import chosen


@chosen(LAYER_LOOPS, PAIR_LOOPS)
def activated(x: Tensor, norm: nn.Module, activation: nn.Module) -> Tensor:
    """Units (B, H) of a layer, or (P, B, H) of the pairs' networks, normed and activated."""
    found: Tensor = activation(norm(x))
    return found
