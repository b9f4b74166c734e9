"""Tables of vectors: ids -> field vectors, all of one size or of sizes that follow the fields'."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.data.schema import Layout
from fieldwise.errors import ConfigError
from fieldwise.nn.initial import embedding_


@dataclass(frozen=True)
class Vectors:
    """How large the vectors are: `dim` for every field, or, with `adaptive` c > 0, ceil(min(c ln N_i, dim)).

    N_i is the field's first size: a vocabulary that grows keeps its vectors.
    """

    dim: int = 32
    adaptive: float = 0.0

    def __post_init__(self) -> None:
        if self.dim < 1 or self.adaptive < 0:
            raise ConfigError(f"dim must be positive and adaptive 0 or more, found {self.dim} and {self.adaptive}")

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        """The vector size of each field, at least 1.

        >>> Vectors(40, adaptive=4).sizes(Layout.of([1, 7, 1000]))
        (1, 8, 28)
        """
        if not self.adaptive:
            return (self.dim,) * layout.fields
        sizes = layout.first_sizes or layout.sizes
        return tuple(max(1, math.ceil(min(self.adaptive * math.log(n), self.dim))) for n in sizes)


class Table(nn.Module):
    """Rows of one size for some fields: their id columns (B, C) -> (B, F, D).

    Field f starts at row `layout.offsets[f]`. C is F unless there are set fields: a set field has several
    columns, unused ones -1, and its vector is the mean of its members' (section 3.1). Gradients are sparse,
    so that a step costs what its rows cost, not what the table costs.

    For the starting values: `whole` is the layout of all the model's fields, where the table has only some of
    them, and a row holds `parts` vectors (FFM).
    """

    l2_group = None  # rows have penalties of their own
    offsets: Tensor
    first: Tensor
    membership: Tensor

    def __init__(self, layout: Layout, dim: int, whole: Layout | None = None, parts: int = 1) -> None:
        super().__init__()
        self.layout, self.whole, self.vector_dim = layout, whole or layout, dim // parts
        self.weight = nn.Parameter(torch.empty(layout.rows, dim))
        self.register_buffer("offsets", torch.tensor(layout.column_offsets), persistent=False)
        self.register_buffer("first", torch.tensor(layout.first_columns), persistent=False)
        member_of = torch.tensor(layout.column_fields)
        membership = (member_of[None, :] == torch.arange(layout.fields)[:, None]).to(self.weight.dtype)
        self.register_buffer("membership", membership, persistent=False)
        self.start()

    def start(self, init: str = "uniform-nk", scale: float = 1.0) -> None:
        """Fills the table anew."""
        embedding_(self.weight, self.whole.fields, self.whole.rows, self.vector_dim, init, scale)

    def forward(self, ids: Tensor) -> Tensor:
        if not self.layout.has_sets:
            return functional.embedding(ids + self.offsets, self.weight, sparse=True)
        # An unused column looks at its set's first member with weight 0: it touches no row of its own.
        present = ids >= 0
        rows = torch.where(present, ids, ids[:, self.first]) + self.offsets
        present = present.to(self.weight.dtype)
        members = functional.embedding(rows, self.weight, sparse=True) * present[:, :, None]
        return (self.membership @ members) / (present @ self.membership.T)[:, :, None]


class Embedding(nn.Module):
    """Vectors of all fields: ids (B, C) -> (B, F, D). Smaller vectors have zeros behind them, up to D."""

    order: Tensor

    def __init__(self, layout: Layout, dims: tuple[int, ...], parts: int = 1) -> None:
        super().__init__()
        self.dims, self.dim = dims, max(dims)
        groups = {size: [f for f, d in enumerate(dims) if d == size] for size in dict.fromkeys(dims)}
        self.tables = nn.ModuleList(Table(layout.only(group), k, layout, parts) for k, group in groups.items())
        self.columns = [layout.columns_of(fields) for fields in groups.values()]
        order = torch.tensor([f for fields in groups.values() for f in fields]).argsort()
        self.register_buffer("order", order, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        if len(self.tables) == 1:
            v: Tensor = self.tables[0](ids)
            return v
        parts = [table(ids[:, columns]) for table, columns in zip(self.tables, self.columns, strict=True)]
        padded = [functional.pad(part, (0, self.dim - part.shape[2])) for part in parts]
        return torch.cat(padded, dim=1).index_select(1, self.order)


class Linear(nn.Module):
    """The linear part: sum of one weight for each value, and a bias: (B, F, 1) -> (B,)."""

    def __init__(self, layout: Layout, bias: bool = True) -> None:
        super().__init__()
        self.weights = Table(layout, 1)
        self.bias = nn.Parameter(torch.zeros(())) if bias else None

    def forward(self, weights: Tensor) -> Tensor:
        total = weights.sum(dim=(1, 2))
        return total if self.bias is None else total + self.bias


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
