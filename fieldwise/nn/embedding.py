"""Tables of vectors: ids -> field vectors, of one size or of sizes that depend on the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_sizes
from fieldwise.data.schema import Layout
from fieldwise.parts.initial import embedding_
from fieldwise.parts.sequence.formula import CandidateAttention, Encoder, Last, Pool, Shape
from fieldwise.parts.ways import Way, chosen, no_triton

POOLS = ("mean", "last", "attention", "encoder")
# Makes the part that pools a sequence of this shape.
Pooling = Callable[[Shape], Pool]


@dataclass(frozen=True)
class Vectors:
    """The size of vectors: `dim` for every field, or, with `adaptive` c > 0, ceil(min(c ln N_i, dim)).

    N_i is the field's first size, so that vectors keep their size when a vocabulary grows. `sequence` says how the
    vectors of a sequence become one, by the parts of parts/sequence: mean, last, attention (DIN, with networks of
    `sequence_units`, and weights that sum to 1 by `sequence_softmax`) or encoder (BST, with `sequence_heads`);
    `sequence_places` lets attention know how long ago, in rows, a place was.
    """

    dim: int = 32
    adaptive: float = 0.0
    sequence: str = "mean"
    sequence_units: Sequence[int] = (36,)
    sequence_softmax: bool = True
    sequence_places: bool = True
    sequence_heads: int = 2

    def __post_init__(self) -> None:
        if self.dim < 1 or not self.adaptive >= 0:
            raise ConfigError(f"dim must be positive and adaptive 0 or more, found {self.dim} and {self.adaptive}")
        if self.sequence not in POOLS:
            raise ConfigError(unknown("model.sequence", self.sequence, POOLS))
        check_sizes("sequence_units", self.sequence_units)
        check_sizes("sequence_heads", [self.sequence_heads])

    def embedding(self, layout: Layout) -> Embedding:
        """The tables of a network over these fields, whose sequences become vectors as is asked for."""
        return Embedding(layout, self.sizes(layout), pool=None if self.sequence == "mean" else self._pool)

    def _pool(self, shape: Shape) -> Pool:
        if self.sequence == "last":
            return Last()
        if self.sequence == "encoder":
            return Encoder(shape, self.sequence_heads)
        return CandidateAttention(shape, self.sequence_units, self.sequence_softmax, self.sequence_places)

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        """The vector size of each field, at least 1.

        >>> Vectors(40, adaptive=4).sizes(Layout.of([1, 7, 1000]))
        (1, 8, 28)
        """
        if not self.adaptive:
            return (self.dim,) * layout.fields
        sizes = layout.first_sizes or layout.sizes
        return tuple(max(1, math.ceil(min(self.adaptive * math.log(n), self.dim))) for n in sizes)


@dataclass(frozen=True)
class Group:
    """Fields with the same kind of lookup, by number: one id, or the mean of `width` ids.

    The ids of an interpolated number are two neighbouring anchors, so that it needs two lookups. Fields of a sequence
    are a group of their own, with the number of the sequence.
    """

    fields: tuple[int, ...]
    width: int
    interpolated: bool
    sequence: int = -1

    @property
    def lookups(self) -> int:
        """How many rows each field looks up."""
        return min(self.width, 2) if self.interpolated else self.width

    def members(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Ids (B, G * width), unused ones -1 -> ids to look up (B, G * n), and their weights in the mean (B, G, n)."""
        ids = ids.unflatten(1, (len(self.fields), self.width))
        first = ids[:, :, :1]
        if self.interpolated:
            upper = (ids > first).to(dtype).mean(dim=2, keepdim=True)
            last = torch.maximum(first, ids[:, :, -1:])
            return torch.cat([first, last], dim=2).flatten(1), torch.cat([1 - upper, upper], dim=2)
        # An unused place looks up its set's first member with weight 0, and so touches no other row.
        present = ids >= 0
        shares = present.to(dtype) / present.sum(dim=2, keepdim=True)
        return torch.where(present, ids, first).flatten(1), shares


def groups_of(layout: Layout) -> list[Group]:
    """The layout's fields by the kind of their lookup."""
    ordered = set(layout.ordered)
    groups = {field: number for number, group in enumerate(layout.sequences) for field in group}
    kinds = [
        (width, width > 1 and field in ordered, groups.get(field, -1)) for field, width in enumerate(layout.widths)
    ]
    return [Group(tuple(f for f, own in enumerate(kinds) if own == kind), *kind) for kind in dict.fromkeys(kinds)]


class Reordered(torch.autograd.Function):
    """Fields (B, F, D) in another order. The gradient is put back by the order's inverse, where torch would add it up
    field by field."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return v.index_select(1, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(1, ctx.saved_tensors[0]), None, None


def rows_of(ids: Tensor, *tables: Table) -> tuple[Tensor, ...]:
    """Rows of one or two tables of the same fields, by one call of the GPU's kernel."""
    from fieldwise.loops.triton_rows import Rows

    found: tuple[Tensor, ...] = Rows.apply(ids, tables[0].offsets, *(table.weight for table in tables))  # type: ignore[no-untyped-call]
    return found


TRITON = Way("Triton", lambda table, ids: no_triton(table.weight), lambda table, ids: rows_of(ids, table)[0])


class Table(nn.Module):
    """Rows of one size for some fields: their id columns (B, C) -> (B, F, D).

    Field f starts at row `layout.offsets[f]`; fields that share vectors share rows. C is F unless there are set fields,
    sequences or interpolated numbers: these have several columns, unused ones -1, and their vector is the mean of their
    members' (section 3.1). Gradients are sparse, so that a step costs only its own rows.

    For the starting values: `whole` is the layout of all the model's fields, if the table has only some of them, and
    a row holds `parts` vectors (FFM).
    """

    l2_group = None  # looked-up rows have their own penalty
    offsets: Tensor
    columns: Tensor
    order: Tensor
    inverse: Tensor

    def __init__(self, layout: Layout, dim: int, whole: Layout | None = None, parts: int = 1) -> None:
        super().__init__()
        self.layout, self.whole, self.vector_dim = layout, whole or layout, dim // parts
        self.weight = nn.Parameter(torch.empty(layout.rows, dim))
        self.groups = groups_of(layout)
        fields = [f for group in self.groups for f in group.fields]
        offsets = [layout.offsets[f] for group in self.groups for f in group.fields for _ in range(group.lookups)]
        columns = layout.columns_of(fields)
        # Buffers, because a captured step cannot copy lists from the host.
        for name, numbers in (
            ("offsets", offsets),
            ("columns", columns),
            ("order", sorted(range(len(fields)), key=fields.__getitem__)),
            ("inverse", fields),
        ):
            self.register_buffer(name, torch.tensor(numbers), persistent=False)
        self.in_order = fields == sorted(fields)
        self.start()

    def start(self, init: str = "uniform-nk", scale: float = 1.0) -> None:
        """Fills the table anew."""
        embedding_(self.weight, self.whole.fields, self.whole.rows, self.vector_dim, init, scale)

    @property
    def here(self) -> tuple[Tensor, range]:
        """The rows that this process has (n, D), and their numbers: all rows, unless the table is cut over workers."""
        return self.weight, range(len(self.weight))

    @torch.no_grad()
    def put(self, first: int, rows: Tensor) -> None:
        """Copies rows (k, D) to those from number `first` on, as far as this process has them."""
        own, numbers = self.here
        low, high = max(first, numbers.start), min(first + len(rows), numbers.stop)
        if low < high:
            own[low - numbers.start : high - numbers.start] = rows[low - first : high - first].to(own)

    def forward(self, ids: Tensor) -> Tensor:
        if not self.layout.has_sets:
            return self._rows(ids)
        means = [
            part.squeeze(2) if group.width == 1 else (part * shares[..., None]).sum(dim=2)
            for group, part, shares in zip(self.groups, *self.members(ids), strict=True)
        ]
        v = torch.cat(means, dim=1)
        return v if self.in_order else Reordered.apply(v, self.order, self.inverse)  # type: ignore[no-untyped-call]

    def members(self, ids: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """For each group of G fields the vectors (B, G, n, D) that its fields look up, and their shares (B, G, n)."""
        grouped = ids if self.in_order else ids.index_select(1, self.columns)
        columns = grouped.split([len(group.fields) * group.width for group in self.groups], dim=1)
        asked = [group.members(own, self.weight.dtype) for group, own in zip(self.groups, columns, strict=True)]
        members = self._rows(torch.cat([found for found, _ in asked], dim=1))
        parts = members.split([found.shape[1] for found, _ in asked], dim=1)
        shares = [own for _, own in asked]
        return [part.unflatten(1, own.shape[1:]) for part, own in zip(parts, shares, strict=True)], shares

    @chosen(TRITON)
    def _rows(self, ids: Tensor) -> Tensor:
        """The row of each id (B, n), ids counting from the field's first row: (B, n, D)."""
        return functional.embedding(ids + self.offsets, self.weight, sparse=True)


class Embedding(nn.Module):
    """Vectors of all fields: ids (B, C) -> (B, F, D). Smaller vectors are padded with zeros to D.

    `pool` makes the parts by which sequences become vectors; without it they are the mean of their places.
    """

    order: Tensor

    def __init__(self, layout: Layout, dims: tuple[int, ...], parts: int = 1, pool: Pooling | None = None) -> None:
        super().__init__()
        self.dims, self.dim, self.layout = dims, max(dims), layout
        groups = {size: [f for f, d in enumerate(dims) if d == size] for size in dict.fromkeys(dims)}
        self.tables = nn.ModuleList(Table(layout.only(group), k, layout, parts) for k, group in groups.items())
        pooled = [Sequences(layout.only(group), k, pool) for k, group in groups.items()] if pool else []
        # Only where there are sequences, so that models without any have the weights that they always had.
        self.sequences = nn.ModuleList(pooled) if pool and layout.sequences else None
        # Buffers, because a captured step cannot copy lists from the host.
        for number, fields in enumerate(groups.values()):
            self.register_buffer(f"columns{number}", torch.tensor(layout.columns_of(fields)), persistent=False)
        # Sorted by Python: on the meta device, where models are counted, torch's sort loads its compiler's algebra.
        placed = [f for fields in groups.values() for f in fields]
        order = sorted(range(len(placed)), key=placed.__getitem__)
        self.register_buffer("order", torch.tensor(order), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        if len(self.tables) == 1:
            return self._vectors(0, ids)
        columns = [getattr(self, f"columns{number}") for number in range(len(self.tables))]
        parts = [self._vectors(number, ids.index_select(1, own)) for number, own in enumerate(columns)]
        padded = [functional.pad(part, (0, self.dim - part.shape[2])) for part in parts]
        return torch.cat(padded, dim=1).index_select(1, self.order)

    def _vectors(self, number: int, ids: Tensor) -> Tensor:
        """The vectors of one table's fields."""
        table = self.tables[number]
        assert isinstance(table, Table)
        if self.sequences is None or not table.layout.sequences:
            found: Tensor = table(ids)
            return found
        pooled: Tensor = self.sequences[number](table, ids)
        return pooled


class Sequences(nn.Module):
    """How the sequences among a table's fields become vectors, each by a part of its own; all other fields as ever."""

    order: Tensor
    plain: Tensor

    def __init__(self, layout: Layout, dim: int, pool: Pooling) -> None:
        super().__init__()
        inside = {field for group in layout.sequences for field in group}
        plain = [field for field in range(layout.fields) if field not in inside]
        pools = []
        for number, group in enumerate(layout.sequences):
            # The row's own fields whose vectors the sequence shares: the candidate.
            shared = [place for place, field in enumerate(group) if layout.owners[field] in plain]
            owners = [plain.index(layout.owners[group[place]]) for place in shared]
            self.register_buffer(f"owners{number}", torch.tensor(owners, dtype=torch.int64), persistent=False)
            pools.append(pool(Shape(len(group), layout.widths[group[0]], dim, tuple(shared))))
        self.pools = nn.ModuleList(pools)
        order = torch.tensor([*plain, *(field for group in layout.sequences for field in group)]).argsort()
        self.register_buffer("order", order, persistent=False)
        looked_up = [field for group in groups_of(layout) if group.sequence < 0 for field in group.fields]
        self.register_buffer("plain", torch.tensor(looked_up).argsort(), persistent=False)

    def forward(self, table: Table, ids: Tensor) -> Tensor:
        """Id columns (B, C) of the table's fields -> (B, F, D)."""
        own: list[Tensor] = []
        past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.pools]
        for group, part, shares in zip(table.groups, *table.members(ids), strict=True):
            if group.sequence >= 0:
                past[group.sequence].append((part, shares))
            else:
                own.append(part.squeeze(2) if group.width == 1 else (part * shares[..., None]).sum(dim=2))
        v = torch.cat(own, dim=1).index_select(1, self.plain)
        own = [v]
        for number, pool in enumerate(self.pools):
            s = torch.cat([part for part, _ in past[number]], dim=1)
            present = past[number][0][1][:, 0] > 0
            own.append(pool(s, present, v.index_select(1, getattr(self, f"owners{number}"))))
        return torch.cat(own, dim=1).index_select(1, self.order)


class Linear(nn.Module):
    """The linear part: sum of one weight for each value, and a bias: (B, F, 1) -> (B,)."""

    def __init__(self, layout: Layout, bias: bool = True) -> None:
        super().__init__()
        # What a value adds by itself is not what it adds as a part of the past.
        self.weights = Table(layout.apart, 1)
        self.bias = nn.Parameter(torch.zeros(())) if bias else None

    def forward(self, weights: Tensor) -> Tensor:
        total = weights.sum(dim=(1, 2))
        return total if self.bias is None else total + self.bias
