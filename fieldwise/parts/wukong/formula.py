"""Stacked layers, each an FM of its vectors beside a few sums of them (Wukong)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import Interaction, array, one_size
from fieldwise.parts.norm.norms import EPSILON, plain_norm


class Stacked(nn.Module):
    """One layer: x (B, n, D) -> LN([FM block ; L x] + x) (Wukong): (B, made + kept, D).

    The FM block is an MLP of LN(x (x^T Y)), `made` vectors; L x are `kept` sums of x. Where the number of vectors
    changes, the residual is R x instead of x.
    """

    def __init__(
        self, n: int, dim: int, made: int, kept: int, rank: int, hidden: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self.project = nn.Parameter(xavier_(torch.empty(n, rank), n, rank))
        self.before = nn.LayerNorm(n * rank, eps=EPSILON)
        sizes = [n * rank, *hidden, made * dim]
        self.layers = nn.ModuleList(affine(*pair) for pair in itertools.pairwise(sizes))
        self.keep = affine(n, kept, bias=False)
        self.residual = affine(n, made + kept, bias=False) if n != made + kept else None
        self.after, self.dropout, self.made = nn.LayerNorm(dim, eps=EPSILON), nn.Dropout(dropout), made

    def forward(self, x: Tensor) -> Tensor:
        by_place = x.transpose(1, 2)
        fm = self.before((x @ (by_place @ self.project)).flatten(1))
        *hidden, last = self.layers
        for layer in hidden:
            fm = self.dropout(torch.relu(layer(fm)))
        kept = self.keep(by_place).transpose(1, 2)
        residual = x if self.residual is None else self.residual(by_place).transpose(1, 2)
        found: Tensor = self.after(torch.cat([last(fm).unflatten(1, (self.made, -1)), kept], dim=1) + residual)
        return found

    def plain_part(self) -> Part:
        """As an interaction's."""
        mlp = Part("mlp", parts=tuple(plain_layer(layer) for layer in self.layers))
        residual = () if self.residual is None else (plain_layer(self.residual),)
        parts = (plain_norm(self.before), mlp, plain_layer(self.keep), plain_norm(self.after), *residual)
        return Part("layer", {"made": self.made}, {"project": array(self.project)}, parts)


class Wukong(Interaction):
    """`times` layers of `made` + `kept` vectors, side by side at the end: width (made + kept) D."""

    def __init__(
        self,
        dims: Sequence[int],
        times: int,
        made: int,
        kept: int,
        rank: int,
        hidden: Sequence[int],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes("stacked, made, kept and fm_rank", [times, made, kept, rank])
        check_sizes("fm_hidden", hidden)
        check_dropout(dropout)
        dim = one_size(self, dims)
        counts = [len(dims)] + [made + kept] * (times - 1)
        self.layers = nn.ModuleList(Stacked(n, dim, made, kept, rank, hidden, dropout) for n in counts)
        self.width = (made + kept) * dim

    @property
    def numbers(self) -> int:
        return self.width * len(self.layers)

    def forward(self, v: Tensor) -> Tensor:
        for layer in self.layers:
            v = layer(v)
        return v.flatten(1)

    def plain_part(self) -> Part:
        layers = tuple(layer.plain_part() for layer in self.layers if isinstance(layer, Stacked))
        return Part("wukong", {"width": self.width}, parts=layers)
