"""Features from vectors alone (Flatten), from several interactions (Concat), and with a layer norm (Normed)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.interactions import Interaction, array, mask_of, plain_part_of
from fieldwise.parts.norm.norms import EPSILON


class Flatten(Interaction):
    """All vectors one after the other, without an interaction: the DNN's plain input."""

    places: Tensor | None

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.width, filled = sum(dims), mask_of(dims)
        places = None if filled is None else filled.flatten().nonzero().squeeze(1)
        self.register_buffer("places", places, persistent=False)

    def forward(self, v: Tensor) -> Tensor:
        return v.flatten(1) if self.places is None else v.flatten(1).index_select(1, self.places)

    def plain_part(self) -> Part:
        return Part("flatten") if self.places is None else Part("flatten", arrays={"places": array(self.places)})


class Concat(Interaction):
    """Several interactions side by side."""

    def __init__(self, *parts: Interaction) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.width = sum(part.width for part in parts)

    @property
    def name(self) -> str:
        return ", ".join(str(part.name) for part in self.parts)

    def forward(self, v: Tensor) -> Tensor:
        return torch.cat([part(v) for part in self.parts], dim=1)

    def plain_part(self) -> Part | None:
        widths = [part.width for part in self.parts]
        plain = [found for found in map(plain_part_of, self.parts) if found is not None]
        return Part("concat", {"widths": widths}, parts=tuple(plain)) if len(plain) == len(widths) else None


class Normed(Interaction):
    """Layer norm on an interaction's features (section 4.4)."""

    def __init__(self, part: Interaction) -> None:
        super().__init__()
        self.part, self.width = part, part.width
        self.norm = nn.LayerNorm(part.width, eps=EPSILON)

    @property
    def name(self) -> str:
        return f"{self.part.name} with layer norm"

    def forward(self, v: Tensor) -> Tensor:
        features: Tensor = self.norm(self.part(v))
        return features

    def plain_part(self) -> Part | None:
        part, arrays = plain_part_of(self.part), {"gain": array(self.norm.weight), "shift": array(self.norm.bias)}
        return None if part is None else Part("normed", {"epsilon": EPSILON}, arrays, (part,))


def normed(part: Interaction, wanted: bool) -> Interaction:
    """The part, with a layer norm on its features if wanted and it has several: the norm of one feature is always 0."""
    return Normed(part) if wanted and part.width > 1 else part
