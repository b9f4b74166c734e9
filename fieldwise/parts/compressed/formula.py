"""The compressed interaction network: products of vectors, compressed to a few, layer after layer (xDeepFM)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.interactions import Interaction, one_size


class Compressed(Interaction):
    """CIN: layer k has maps[k] vectors x^k_h = sum_ij W^k_hij (v_i * x^(k-1)_j) + b^k_h, x^0 = v (xDeepFM).

    The features are the sums of all layers' vectors: width sum(maps).
    """

    def __init__(self, dims: Sequence[int], maps: Sequence[int]) -> None:
        super().__init__()
        one_size(self, dims)
        if not maps:
            raise ConfigError("maps must have a number for each layer of the CIN, found none")
        check_sizes("maps", maps)
        before = [len(dims), *maps[:-1]]
        self.layers = nn.ModuleList(affine(len(dims) * n, out) for n, out in zip(before, maps, strict=True))
        self.width, self.numbers_of_products = sum(maps), len(dims) * max(before) * dims[0]

    @property
    def numbers(self) -> int:
        return self.width + self.numbers_of_products

    def forward(self, v: Tensor) -> Tensor:
        x = first = v.transpose(1, 2)
        pooled = []
        for layer in self.layers:
            x = layer((first[:, :, :, None] * x[:, :, None, :]).flatten(2))
            pooled.append(x.sum(dim=1))
        return torch.cat(pooled, dim=1)

    def plain_part(self) -> Part:
        layers = tuple(plain_layer(layer) for layer in self.layers)
        return Part("compressed", {"width": self.width}, parts=layers)
