"""Layer norm over one vector, and the fused layer norm over all sub-networks of an instance."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError, unknown

# The paper writes its norms without an epsilon; equal units would then divide by zero.
EPSILON = 1e-5

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
}


def activation(name: str) -> nn.Module:
    """The activation of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(unknown("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]()


class PairNorm(nn.Module):
    """Normalises the units of P sub-networks (section 3.3.4): (P, B, H) -> (P, B, H).

    kind `fused`: statistics over all pairs and units of an instance, one gain and shift of length H for
    all pairs (the paper's formula); `fused-per-pair`: the same statistics, a gain and shift for each
    pair; `layer`: statistics of each sub-network by itself, own gain and shift.
    """

    KINDS = ("fused", "fused-per-pair", "layer", "none")

    def __init__(self, pairs: int, width: int, kind: str = "fused") -> None:
        super().__init__()
        if kind not in self.KINDS:
            raise ConfigError(unknown("sub-network norm", kind, self.KINDS))
        self.over = (2,) if kind == "layer" else (0, 2)
        own = pairs if kind in ("fused-per-pair", "layer") else 1
        self.gain = nn.Parameter(torch.ones(own, 1, width))
        self.shift = nn.Parameter(torch.zeros(own, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=self.over, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + EPSILON) * self.gain + self.shift


def pair_norm(pairs: int, width: int, kind: str) -> nn.Module:
    """The norm of a micro network's layer, or nothing for `none`."""
    return nn.Identity() if kind == "none" else PairNorm(pairs, width, kind)
