"""Explicit weights of pairs of categories (Poly-2), which nn/crosses.py looks up."""

from __future__ import annotations

from torch import Tensor

from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.interactions import Pairwise


class PairWeights(Pairwise):
    """The explicit weights of a row's pairs (B, P, 1) as features: width P."""

    def __init__(self, fields: int) -> None:
        super().__init__([1] * fields)
        self.width = self.pairs

    def forward(self, weights: Tensor) -> Tensor:
        return weights.flatten(1)

    def plain_part(self) -> Part:
        return Part("pair_weights")
