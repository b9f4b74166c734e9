"""Products of all pairs behind a matrix, and fields weighted by the whole row before them (FiBiNET)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.gate.formula import Gate
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import Interaction, Pairwise, array, plain_part_of
from fieldwise.parts.weights import Plain


class Bilinear(Pairwise):
    """(v_i W) * v_j of all pairs (FiBiNET): width P D.

    W is one matrix for `all`, one for `each` first field, or one for each `pair`.
    """

    l2_group = "kernels"
    KINDS = ("all", "each", "pair")

    def __init__(self, dims: Sequence[int], kind: str = "pair") -> None:
        if kind not in self.KINDS:
            raise ConfigError(unknown("bilinear", kind, self.KINDS))
        super().__init__(dims)
        self.kind, dim = kind, dims[0]
        # The last field is the first of no pair.
        count = {"all": 1, "each": len(dims) - 1, "pair": self.pairs}[kind]
        self.weight = Plain(xavier_(torch.empty(count, dim, dim), dim, dim))
        self.width = self.pairs * dim

    def forward(self, v: Tensor) -> Tensor:
        p, q = self.sides(v)
        matrices = self.weight().index_select(0, self.first) if self.kind == "each" else self.weight()
        return (torch.matmul(p, matrices) * q).transpose(0, 1).flatten(1)

    def plain_part(self) -> Part:
        arrays = {"weight": array(self.weight())}
        return Part("bilinear", {"of": self.kind, "width": self.width}, arrays)


class Squeezed(Interaction):
    """SENET before another part: each vector times its factor in a gate by the means of all vectors.

    The gate has F / `reduction` units, at least one.
    """

    def __init__(self, part: Interaction, fields: int, reduction: int = 3, end: str = "relu") -> None:
        super().__init__()
        if reduction < 1:
            raise ConfigError(f"reduction must be positive, found {reduction}")
        if end not in ("relu", "sigmoid"):
            raise ConfigError(unknown("excitation", end, ("relu", "sigmoid")))
        self.part, self.width = part, part.width
        self.gate = Gate(fields, fields, (max(1, fields // reduction),), end, bias=False, open=end == "relu")

    @property
    def name(self) -> str:
        return f"{self.part.name} of squeezed vectors"

    def forward(self, v: Tensor) -> Tensor:
        found: Tensor = self.part(v * self.gate(v.mean(dim=2))[:, :, None])
        return found

    def plain_part(self) -> Part | None:
        part = plain_part_of(self.part)
        return None if part is None else Part("squeezed", parts=(self.gate.plain_part(), part))
