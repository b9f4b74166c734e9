"""Fields that attend to each other in several heads, layer after layer (AutoInt)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.interactions import Interaction, one_size


class Attend(nn.Module):
    """One layer (AutoInt): (B, F, width) -> (B, F, out), relu(softmax(Q K^T) V of each head + residual).

    The residual is x, or W x where sizes differ. `scaled` divides the products by the root of a head's size.
    """

    def __init__(self, width: int, out: int, heads: int, scaled: bool, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (affine(width, out, bias=False) for _ in range(3))
        self.residual = affine(width, out, bias=False) if width != out else None
        self.heads, self.factor = heads, (out // heads) ** -0.5 if scaled else 1.0
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        # (B, heads, F, size of a head)
        q, k, v = (
            made(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for made in (self.query, self.key, self.value)
        )
        weights = torch.softmax((q * self.factor) @ k.transpose(2, 3), dim=3)
        found = (self.dropout(weights) @ v).transpose(1, 2).flatten(2)
        return torch.relu(found + (x if self.residual is None else self.residual(x)))

    def plain_part(self) -> Part:
        """As an interaction's."""
        layers = [self.query, self.key, self.value, *([] if self.residual is None else [self.residual])]
        settings = {"heads": self.heads, "factor": self.factor}
        return Part("layer", settings, parts=tuple(plain_layer(layer) for layer in layers))


class SelfAttention(Interaction):
    """`times` layers of `heads` heads with `size` numbers a field together: width F * size."""

    def __init__(
        self, dims: Sequence[int], times: int, heads: int, size: int, scaled: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        dim = one_size(self, dims)
        check_sizes("attention_layers, heads and attention", [times, heads, size])
        check_dropout(dropout)
        if size % heads:
            raise ConfigError(f"attention must be a multiple of heads, found {size} for {heads} heads")
        widths = [dim] + [size] * (times - 1)
        self.layers = nn.ModuleList(Attend(width, size, heads, scaled, dropout) for width in widths)
        self.width, self.weights_of_a_row = len(dims) * size, times * heads * len(dims) ** 2

    @property
    def numbers(self) -> int:
        return self.width + self.weights_of_a_row

    def forward(self, v: Tensor) -> Tensor:
        for layer in self.layers:
            v = layer(v)
        return v.flatten(1)

    def plain_part(self) -> Part:
        layers = tuple(layer.plain_part() for layer in self.layers if isinstance(layer, Attend))
        return Part("self_attention", {"width": self.width}, parts=layers)
