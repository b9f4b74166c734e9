"""Sequences -> one vector for each of their fields: what of the past counts for this row.

A sequence has G fields, whose vectors of the same place are those of one earlier row: s (B, G, L, D), the newest first,
and `present` (B, L) says which places are used; the first one always is. `candidate` (B, C, D) are the row's own
vectors of those C fields that share their vectors with the sequence's: the candidate and the past in the same terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.parts.affine.formula import affine


@dataclass(frozen=True)
class Shape:
    """A sequence of L places with fields of size D; `own` are those of its fields that the candidate has too."""

    fields: int
    length: int
    dim: int
    own: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The fields that the candidate lacks, such as how long ago a row came."""
        return tuple(field for field in range(self.fields) if field not in self.own)


class Pool(nn.Module, ABC):
    """s (B, G, L, D), present (B, L), candidate (B, C, D) -> (B, G, D)."""

    l2_group = "attention"

    @abstractmethod
    def forward(self, s: Tensor, present: Tensor, candidate: Tensor) -> Tensor: ...


class Last(Pool):
    """The newest place alone."""

    def forward(self, s: Tensor, present: Tensor, candidate: Tensor) -> Tensor:
        return s[:, :, 0]


class CandidateAttention(Pool):
    """DIN's weights of the places: [v, s, v - s, v * s, others] -> a small network -> a weight for each place.

    With `softmax` the weights of a row sum to 1; without it they are as they come, as DIN has it, so that a long past
    of what the candidate is like counts for more. With `places`, each place has a vector that is added to s before it
    is weighed. `others` are the fields of s that the candidate lacks.
    """

    own: Tensor
    others: Tensor

    def __init__(self, shape: Shape, units: Sequence[int] = (36,), softmax: bool = True, places: bool = True) -> None:
        super().__init__()
        self.shape, self.softmax = shape, softmax
        widths = [(4 * len(shape.own) + len(shape.others)) * shape.dim, *units]
        self.layers = nn.ModuleList(affine(width, out) for width, out in zip(widths, units, strict=False))
        self.score = affine(widths[-1], 1)
        self.places = nn.Parameter(torch.zeros(shape.length, shape.fields * shape.dim)) if places else None
        for name, fields in (("own", shape.own), ("others", shape.others)):
            self.register_buffer(name, torch.tensor(fields, dtype=torch.int64), persistent=False)

    def forward(self, s: Tensor, present: Tensor, candidate: Tensor) -> Tensor:
        return (self.weights(s, present, candidate)[:, None, :, None] * s).sum(dim=2)

    def weights(self, s: Tensor, present: Tensor, candidate: Tensor) -> Tensor:
        """The weight of each place, (B, L); 0 where it is not used."""
        if self.places is not None:
            s = s + self.places.unflatten(1, (self.shape.fields, self.shape.dim)).transpose(0, 1)
        x = side_by_side(s, self.others)
        if self.shape.own:
            own = side_by_side(s, self.own)
            v = candidate.flatten(1)[:, None].expand_as(own)
            x = torch.cat([v, own, v - own, v * own, x], dim=2)
        for layer in self.layers:
            x = torch.relu(layer(x))
        scores: Tensor = self.score(x).squeeze(2)
        if self.softmax:
            return torch.softmax(scores.masked_fill(~present, -torch.inf), dim=1)
        return scores * present


class Encoder(Pool):
    """BST's small transformer over the past and the candidate: what it makes of the candidate's place.

    The candidate, behind which the past lies, looks with all other places at each other once: softmax(QK^T/sqrt(d)) V
    in `heads` heads, added and normalised, then a layer of twice the width, added and normalised. Without a candidate
    the newest place stands for it.
    """

    compared: Tensor

    def __init__(self, shape: Shape, heads: int = 2) -> None:
        super().__init__()
        # All fields go through it, so that each of them has something to give back.
        self.shape, width = shape, shape.fields * shape.dim
        self.heads = next(h for h in range(min(heads, width), 0, -1) if width % h == 0)
        self.three = affine(width, 3 * width)
        self.joined, self.wide, self.narrow = affine(width, width), affine(width, 2 * width), affine(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.places = nn.Parameter(torch.zeros(shape.length + bool(shape.own), width))
        self.register_buffer("compared", torch.tensor(shape.own, dtype=torch.int64), persistent=False)

    def forward(self, s: Tensor, present: Tensor, candidate: Tensor) -> Tensor:
        x = s.transpose(1, 2).flatten(2)
        if self.shape.own:
            # Fields that the candidate lacks are 0 in its place.
            first = torch.zeros_like(s[:, :, 0]).index_copy(1, self.compared, candidate)
            x = torch.cat([first.flatten(1)[:, None], x], dim=1)
            present = torch.cat([present[:, :1], present], dim=1)
        x = x + self.places
        x = self.norms[0](x + self.joined(self._attended(x, present)))
        found: Tensor = self.norms[1](x + self.narrow(torch.relu(self.wide(x))))[:, 0]
        apart: Tensor = found.unflatten(1, (self.shape.fields, self.shape.dim))
        return apart

    def _attended(self, x: Tensor, present: Tensor) -> Tensor:
        """(B, L, W) -> (B, L, W)."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.three(x).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        weights = torch.softmax(scores.masked_fill(~present[:, None, None], -torch.inf), dim=3)
        found: Tensor = (weights @ v).transpose(1, 2).flatten(2)
        return found


def side_by_side(s: Tensor, fields: Tensor) -> Tensor:
    """Some fields of s (B, G, L, D), place by place: (B, L, C * D)."""
    return s.index_select(1, fields).transpose(1, 2).flatten(2)
