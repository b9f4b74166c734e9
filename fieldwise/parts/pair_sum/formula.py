"""The sum of all pairs' inner products (FM, DeepFM)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.interactions import Interaction, one_size
from fieldwise.parts.ways import Way, chosen, no_score_kernels


def _by_triton(part: PairSum, v: Tensor) -> Tensor:
    from fieldwise.parts.pair_sum.triton import pair_sums

    return pair_sums(v)


class PairSum(Interaction):
    """The sum of all pairs' inner products in O(F D), FM's second-order part (eq. 3): width 1."""

    width = 1

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        one_size(self, dims)

    @chosen(Way("Triton, for scores", no_score_kernels, _by_triton))
    def forward(self, v: Tensor) -> Tensor:
        return 0.5 * (v.sum(dim=1).square() - v.square().sum(dim=1)).sum(dim=1, keepdim=True)

    def plain_part(self) -> Part:
        return Part("pair_sum")
