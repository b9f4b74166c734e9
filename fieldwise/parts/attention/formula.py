"""All pairs of fields, weighted by an attention network (AFM)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine
from fieldwise.parts.attention.compiled import LOOPS
from fieldwise.parts.attention.gpu import FUSED_SUMS, TRITON
from fieldwise.parts.interactions import Pairwise, array
from fieldwise.parts.ways import chosen


class AttentionPool(Pairwise):
    """AFM's pairs, weighted by attention (section 3.1): width 1.

    score_ij = h^T ReLU(W (v_i * v_j) + b), a = softmax(score / temperature) over pairs, and the features are
    p^T sum a_ij (v_i * v_j); p is ones, or trained with `project`. It then starts at the number of pairs, where equal
    attention gives FM: from ones, the mean of some hundred products is so small that L2 takes the vectors to 0. The
    paper's t most plausibly multiplies the score, so that its t is our 1/temperature.
    """

    width = 1
    l2_group = "attention"

    def __init__(
        self,
        dims: Sequence[int],
        hidden: int = 16,
        temperature: float = 1.0,
        project: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dims)
        if not temperature > 0:
            raise ConfigError(f"temperature must be positive, found {temperature}")
        check_sizes("attention", [hidden])
        check_dropout(dropout)
        self.temperature = temperature
        dim = dims[0]
        self.attend = affine(dim, hidden)
        self.score = nn.Parameter(torch.randn(hidden))
        self.projection = nn.Parameter(torch.full((dim,), float(self.pairs))) if project else None
        self.dropout = nn.Dropout(dropout)

    @property
    def numbers(self) -> int:
        return self.pairs

    def products(self, v: Tensor) -> Tensor:
        """v_i * v_j of all pairs: (B, P, D)."""
        return v.index_select(1, self.first) * v.index_select(1, self.second)

    def attention(self, products: Tensor) -> Tensor:
        """The weight of each pair: (B, P, D) -> (B, P), summing to 1."""
        scores = torch.relu(self.attend(products)) @ self.score
        return torch.softmax(scores / self.temperature, dim=1)

    @chosen(TRITON, LOOPS, FUSED_SUMS)
    def forward(self, v: Tensor) -> Tensor:
        products = self.products(v)
        weights: Tensor = self.dropout(self.attention(products))
        return self.projected(torch.bmm(weights[:, None, :], products).squeeze(1))

    def projected(self, pooled: Tensor) -> Tensor:
        """p^T of the weighted sum of products: (B, D) -> (B, 1)."""
        if self.projection is not None:
            pooled = pooled * self.projection
        return pooled.sum(dim=1, keepdim=True)

    def plain_part(self) -> Part:
        weight, bias = (array(each) for each in self.attend.parameters())
        last = np.ones(weight.shape[1], dtype=np.float32) if self.projection is None else array(self.projection)
        arrays = {"weight": weight.T, "bias": bias, "score": array(self.score), "projection": last}
        return Part("attention", {"temperature": self.temperature}, arrays)
