"""Layers whose halves multiply each other (FinalNet)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.interactions import Interaction
from fieldwise.parts.norm.norms import norm_of, plain_norm


class Factorised(Interaction):
    """Blocks norm([a ; a * b]), [a ; b] = W x + b (FinalNet), or with residual `sum` norm(a + a * b): width
    widths[-1].

    With `gate` the first x are the vectors, and the vectors times factors that are affine in all fields.
    """

    RESIDUALS = ("concat", "sum")

    def __init__(
        self,
        dims: Sequence[int],
        widths: Sequence[int],
        residual: str = "concat",
        norm: str = "batch",
        dropout: float = 0.0,
        gate: bool = False,
    ) -> None:
        super().__init__()
        if residual not in self.RESIDUALS:
            raise ConfigError(unknown("residual", residual, self.RESIDUALS))
        check_sizes("blocks", widths)
        check_dropout(dropout)
        if not widths or (residual == "concat" and any(width % 2 for width in widths)):
            raise ConfigError(f"blocks needs an even number of units in each block, found {list(widths)}")
        self.residual = residual
        self.gate = affine(len(dims), len(dims)) if gate else None
        if self.gate is not None:  # it starts open
            weight, bias = self.gate.parameters()
            nn.init.zeros_(weight)
            nn.init.ones_(bias)
        self.flat = Flatten([*dims, *dims] if gate else dims)
        each = 1 if residual == "concat" else 2
        inputs = [self.flat.width, *widths[:-1]]
        self.layers = nn.ModuleList(affine(n, each * out) for n, out in zip(inputs, widths, strict=True))
        self.norms = nn.ModuleList(norm_of(norm, width) for width in widths)
        self.dropout, self.width = nn.Dropout(dropout), widths[-1]

    def forward(self, v: Tensor) -> Tensor:
        if self.gate is not None:
            v = torch.cat([v, v * self.gate(v.transpose(1, 2)).transpose(1, 2)], dim=1)
        x: Tensor = self.flat(v)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            a, b = layer(x).chunk(2, dim=1)
            x = self.dropout(norm(torch.cat([a, a * b], dim=1) if self.residual == "concat" else a + a * b))
        return x

    def plain_part(self) -> Part:
        arrays = self.flat.plain_part().arrays
        layers, norms = map(plain_layer, self.layers), map(plain_norm, self.norms)
        blocks = [Part("block", parts=parts) for parts in zip(layers, norms, strict=True)]
        gate = () if self.gate is None else (plain_layer(self.gate),)
        return Part("factorised", {"width": self.width, "residual": self.residual}, arrays, (*blocks, *gate))
