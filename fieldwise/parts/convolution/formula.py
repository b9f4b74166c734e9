"""Convolutions along the fields (CCPM)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.convolution.compiled import LOOPS
from fieldwise.parts.convolution.gpu import PRODUCTS
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import Interaction, array, one_size
from fieldwise.parts.ways import chosen


class Convolution(Interaction):
    """CCPM: convolutions along the fields, ReLU, and the largest values of each channel (section 3.2).

    `channels`, `widths` and `keep` have one entry for each stage. Table 10's parameter count implies one stage with
    `keep` 1 (global max-pooling); `keep` k > 1 keeps the k largest values in the order of the fields.
    """

    def __init__(
        self, dims: Sequence[int], channels: Sequence[int], widths: Sequence[int], keep: Sequence[int]
    ) -> None:
        super().__init__()
        if not len(channels) == len(widths) == len(keep) > 0:
            raise ConfigError(f"channels, widths and keep need one length, found {channels}, {widths}, {keep}")
        check_sizes("channels, widths and keep", [*channels, *widths, *keep])
        self.convolutions, self.keep, length, inputs = nn.ModuleList(), list(keep), len(dims), one_size(self, dims)
        for out, width, kept in zip(channels, widths, keep, strict=True):
            width = min(width, length)
            convolution = nn.Conv1d(inputs, out, width, bias=False)
            xavier_(convolution.weight, inputs * width, out)
            self.convolutions.append(convolution)
            length, inputs = min(kept, length - width + 1), out
        self.width = inputs * length

    @chosen(LOOPS)
    def forward(self, v: Tensor) -> Tensor:
        x = v.transpose(1, 2)
        for convolution, kept in zip(self.convolutions, self.keep, strict=True):
            # Pooled before the ReLU, which gives the same values; after it, ties between zeros would be left to chance.
            x = torch.relu(largest(along(convolution, x), kept))
        return x.flatten(1)

    def plain_part(self) -> Part:
        weights = {f"weight_{n}": array(weight) for n, weight in enumerate(self.convolutions.parameters())}
        return Part("convolution", {"keep": self.keep}, weights)


@chosen(PRODUCTS)
def along(convolution: nn.Module, x: Tensor) -> Tensor:
    """A convolution along the fields: (B, C, L) -> (B, C', L')."""
    found: Tensor = convolution(x)
    return found


def largest(x: Tensor, kept: int) -> Tensor:
    """The `kept` largest values of each channel, in their original order: (B, C, L) -> (B, C, kept)."""
    if kept == 1:
        return x.amax(dim=2, keepdim=True)
    return x.gather(2, x.topk(kept, dim=2).indices.sort(dim=2).values) if kept < x.shape[2] else x
