"""Inner products of all pairs (IPNN)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.inner.compiled import LOOPS
from fieldwise.parts.interactions import Pairwise
from fieldwise.parts.ways import chosen


class InnerProduct(Pairwise):
    """Inner products of all pairs: width P."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__(dims)
        self.width = self.pairs

    @chosen(LOOPS)
    def forward(self, v: Tensor) -> Tensor:
        places = self.first * v.shape[1] + self.second
        return torch.bmm(v, v.transpose(1, 2)).flatten(1).index_select(1, places)

    def plain_part(self) -> Part:
        return Part("inner")
