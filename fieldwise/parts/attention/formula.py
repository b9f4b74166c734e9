"""All pairs of fields, weighted by an attention network (AFM)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.loops import gpu, running
from fieldwise.parts.affine.formula import affine
from fieldwise.parts.attention import compiled as attention_steps
from fieldwise.parts.interactions import Pairwise
from fieldwise.parts.kernel.compiled import PairProducts, pays


class AttentionPool(Pairwise):
    """AFM's pairs, weighted by attention (section 3.1): width 1.

    score_ij = h^T ReLU(W (v_i * v_j) + b), a = softmax(score / temperature) over pairs, and the features are
    p^T sum a_ij (v_i * v_j); p is ones, or trained from ones with `project`. The paper's t most plausibly
    multiplies the score, so that its t is our 1/temperature.
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
        self.projection = nn.Parameter(torch.ones(dim)) if project else None
        self.dropout = nn.Dropout(dropout)

    @property
    def numbers(self) -> int:
        return self.pairs

    def products(self, v: Tensor) -> Tensor:
        """v_i * v_j of all pairs: (B, P, D)."""
        if pays(v):
            fast: Tensor = PairProducts.apply(v)  # type: ignore[no-untyped-call]
            return fast
        return v.index_select(1, self.first) * v.index_select(1, self.second)

    def attention(self, products: Tensor) -> Tensor:
        """The weight of each pair: (B, P, D) -> (B, P), summing to 1."""
        hidden = torch.relu(self.attend(products))
        # On a GPU a sum that its compiler fuses, instead of a product of matrices of one column; so too below.
        scores = (hidden * self.score).sum(dim=2) if hidden.is_cuda else hidden @ self.score
        return torch.softmax(scores / self.temperature, dim=1)

    def forward(self, v: Tensor) -> Tensor:
        if gpu.scores(self, v):
            from fieldwise.parts.triton_scores import attention

            assert isinstance(self.attend, nn.Linear)
            last = self.score.new_ones(v.shape[2]) if self.projection is None else self.projection
            return attention(v, self.first, self.second, self.attend, self.score, last, self.temperature)
        pooled = self.compiled(v) if running.worth(v) else self.plain(v)
        if self.projection is not None:
            pooled = pooled * self.projection
        return pooled.sum(dim=1, keepdim=True)

    def plain(self, v: Tensor) -> Tensor:
        """The weighted sum of products (B, D), from an array of all pairs' products."""
        products = self.products(v)
        weights: Tensor = self.dropout(self.attention(products))
        if products.is_cuda:
            return (weights[:, :, None] * products).sum(dim=1)
        return torch.bmm(weights[:, None, :], products).squeeze(1)

    def compiled(self, v: Tensor) -> Tensor:
        """The same without that array: sum_ij a_ij v_i * v_j = sum_i v_i * sum_{j>i} a_ij v_j."""
        with torch.autocast("cpu", enabled=False):
            attend: Any = self.attend
            scores = attention_steps.Scores.apply(v, attend.weight, attend.bias, self.score)  # type: ignore[no-untyped-call]
            weights: Tensor = self.dropout(torch.softmax(scores / self.temperature, dim=1))
            fields = v.shape[1]
            places = self.first * fields + self.second
            square = weights.new_zeros(len(v), fields * fields).index_copy(1, places, weights)
            return (v * torch.bmm(square.unflatten(1, (fields, fields)), v)).sum(dim=1)
