"""Products of the vectors that each field has for each other field (FFM)."""

from __future__ import annotations

from torch import Tensor

from fieldwise.config.options import check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.interactions import Pairwise
from fieldwise.parts.ways import Way, chosen, no_score_kernels


def _by_triton(part: FieldAwareProduct, v: Tensor) -> Tensor:
    from fieldwise.parts.field_aware.triton import field_products

    return field_products(v, part.first, part.second, part.scale)


class FieldAwareProduct(Pairwise):
    """FFM's products (eq. 4): each vector, of (F-1) k numbers, holds a part for every other field: width P.

    The part of field i for field j is number j-1 if j > i, else j, as a field has no part for itself.
    """

    def __init__(self, fields: int, dim: int, scale: float = 1.0) -> None:
        check_sizes("dim", [dim])
        super().__init__([dim] * fields)
        self.width, self.fields, self.dim, self.scale = self.pairs, fields, dim, scale

    @chosen(Way("Triton, for scores", no_score_kernels, _by_triton))
    def forward(self, v: Tensor) -> Tensor:
        parts = v.unflatten(2, (self.fields - 1, self.dim))
        products: Tensor = parts[:, self.first, self.second - 1] * parts[:, self.second, self.first]
        return products.sum(dim=2) * self.scale

    def plain_part(self) -> Part:
        return Part("field_aware", {"dim": self.dim, "scale": self.scale})
