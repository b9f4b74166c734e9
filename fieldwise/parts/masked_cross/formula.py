"""Crosses by half as many numbers and their masked copies (FCN, also called DCNv3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.interactions import Interaction, array, one_size
from fieldwise.parts.norm.norms import EPSILON, plain_norm


class MaskedCross(Interaction):
    """x <- c * ([h ; h * relu(LN h)] + b) + x, h = W x of half the size, `times` times (FCN).

    c is x itself, so that the order of products doubles (`exponential`), or the first x (linear). x holds the first
    halves of all vectors, then their second halves. With `heads`, each head has its own part of every vector; they
    share the weights, and the features are their mean: width F D / heads.
    """

    def __init__(
        self, dims: Sequence[int], times: int, exponential: bool, heads: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes("crosses and heads", [times, heads])
        check_dropout(dropout)
        dim = one_size(self, dims)
        if dim % (2 * heads):
            raise ConfigError(f"dim must be a multiple of 2 * heads, found {dim} for {heads} heads")
        self.heads, self.exponential, self.fields = heads, exponential, len(dims)
        self.width = width = len(dims) * dim // heads
        self.layers = nn.ModuleList(affine(width, width // 2, bias=False) for _ in range(times))
        self.norms = nn.ModuleList(nn.LayerNorm(width // 2, eps=EPSILON) for _ in range(times))
        self.biases = nn.ParameterList(torch.zeros(width) for _ in range(times))
        self.dropout = nn.Dropout(dropout)

    @property
    def numbers(self) -> int:
        return self.width * self.heads * len(self.layers)

    def forward(self, v: Tensor) -> Tensor:
        # (B, F, heads, 2, D / 2 heads) -> (B, heads, width)
        x: Tensor = v.unflatten(2, (self.heads, 2, -1)).permute(0, 2, 3, 1, 4).flatten(2)
        first = x
        for layer, norm, bias in zip(self.layers, self.norms, self.biases, strict=True):
            h = layer(x)
            crossed = torch.cat([h, h * torch.relu(norm(h))], dim=2) + bias
            x = self.dropout((x if self.exponential else first) * crossed + x)
        return x.mean(dim=1)

    def plain_part(self) -> Part:
        settings = {"width": self.width, "heads": self.heads, "exponential": self.exponential, "fields": self.fields}
        arrays = {f"bias_{number}": array(bias) for number, bias in enumerate(self.biases)}
        layers, norms = map(plain_layer, self.layers), map(plain_norm, self.norms)
        return Part(
            "masked_cross", settings, arrays, tuple(each for both in zip(layers, norms, strict=True) for each in both)
        )
