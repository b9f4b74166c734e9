"""Weights of parts: plain, or packed where fields have vectors of different sizes."""

from __future__ import annotations

from torch import Tensor, nn


class Packed(nn.Module):
    """Weights of different sizes in one padded tensor: only the entries where `mask` holds are parameters."""

    places: Tensor

    def __init__(self, start: Tensor, mask: Tensor) -> None:
        super().__init__()
        self.shape = start.shape
        self.register_buffer("places", mask.flatten().nonzero().squeeze(1), persistent=False)
        self.entries = nn.Parameter(start.flatten()[mask.flatten()].clone())

    def forward(self) -> Tensor:
        empty = self.entries.new_zeros(self.shape.numel())
        return empty.index_copy(0, self.places, self.entries).view(self.shape)


class Plain(nn.Module):
    """A parameter with the interface of Packed."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.entries = nn.Parameter(start.clone())

    def forward(self) -> Tensor:
        return self.entries


def weights(start: Tensor, mask: Tensor | None = None) -> Plain | Packed:
    """Weights with these starting values; entries where `mask` is false are not learnt."""
    return Plain(start) if mask is None else Packed(start, mask)
