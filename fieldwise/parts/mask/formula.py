"""Layers behind masks that the whole row gives (MaskNet)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.features.formula import Flatten
from fieldwise.parts.gate.formula import Gate
from fieldwise.parts.interactions import Interaction, array, one_size
from fieldwise.parts.norm.norms import EPSILON, plain_norm


class FieldNorm(nn.Module):
    """A layer norm of each field's vector with gains and shifts of its own: (B, F, D) -> (B, F, D)."""

    l2_group = None

    def __init__(self, fields: int, dim: int) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(fields, dim)), nn.Parameter(torch.zeros(fields, dim))

    def forward(self, v: Tensor) -> Tensor:
        return functional.layer_norm(v, v.shape[2:], eps=EPSILON) * self.gain + self.shift


class MaskBlocks(Interaction):
    """Blocks relu(LN(W (mask * x))), mask = W2 relu(W1 e + b1) + b2 by the row's vectors e (MaskNet).

    With `serial`, x of the first block are the normed vectors and of each other one the block before it: width
    widths[-1]. Without it, all blocks take the normed vectors and lie side by side: width sum(widths). A mask has
    `reduction` times as many hidden units as it has factors.
    """

    def __init__(
        self, dims: Sequence[int], widths: Sequence[int], serial: bool, reduction: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes("blocks", widths)
        if not widths or min(widths) < 2:
            raise ConfigError(f"blocks needs two units or more in each block, found {list(widths)}")
        if not reduction > 0:
            raise ConfigError(f"reduction must be positive, found {reduction}")
        self.norm, self.flat, self.serial = FieldNorm(len(dims), one_size(self, dims)), Flatten(dims), serial
        inputs = [self.flat.width, *(widths[:-1] if serial else [self.flat.width] * (len(widths) - 1))]
        self.masks = nn.ModuleList(
            Gate(self.flat.width, width, (max(1, round(width * reduction)),), "none") for width in inputs
        )
        self.layers = nn.ModuleList(affine(*sizes, bias=False) for sizes in zip(inputs, widths, strict=True))
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=EPSILON) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.width = widths[-1] if serial else sum(widths)

    def forward(self, v: Tensor) -> Tensor:
        row, x = self.flat(v), self.flat(self.norm(v))
        outputs = []
        for mask, layer, norm in zip(self.masks, self.layers, self.norms, strict=True):
            outputs.append(self.dropout(torch.relu(norm(layer(mask(row) * x)))))
            x = outputs[-1] if self.serial else x
        return x if self.serial else torch.cat(outputs, dim=1)

    def plain_part(self) -> Part:
        arrays = {"gain": array(self.norm.gain), "shift": array(self.norm.shift)}
        masks = [mask.plain_part() for mask in self.masks if isinstance(mask, Gate)]
        layers, norms = map(plain_layer, self.layers), map(plain_norm, self.norms)
        blocks = [Part("block", parts=parts) for parts in zip(masks, layers, norms, strict=True)]
        settings = {"width": self.width, "serial": self.serial, "epsilon": EPSILON}
        return Part("mask", settings, arrays, tuple(blocks))
