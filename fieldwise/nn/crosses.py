"""An explicit weight for each pair of categories: what Poly-2 regression learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fieldwise.config.options import check_sizes
from fieldwise.data.schema import Layout
from fieldwise.nn.embedding import Table
from fieldwise.parts.interactions import check_pairs, pairs

# Larger than any id. A stride of N_j would move old pairs to other buckets when a field grows.
HASHED_STRIDE = 2**31
# The memory that Python takes for a pair while it lays out the table, about.
PAIR_BYTES = 600


class PairTable(nn.Module):
    """One weight for each two categories of each pair of fields: ids (B, C) -> (B, P, 1).

    Fields i < j have N_i N_j weights; that of their categories a and b is number a N_j + b. If these are more than
    `buckets`, a and b are hashed into `buckets`, whatever N_j is, and some categories share a weight. All weights are
    in one table, so that a step costs only its own rows. A pair with a set takes the mean over its members' pairs.
    """

    first: Tensor
    second: Tensor
    strides: Tensor
    hashed: Tensor

    def __init__(self, layout: Layout, buckets: int) -> None:
        super().__init__()
        check_sizes("buckets", [buckets])
        check_pairs(layout.fields, PAIR_BYTES)
        self.buckets = buckets
        fields = [(int(i), int(j)) for i, j in zip(*pairs(layout.fields), strict=True)]
        full = [layout.sizes[i] * layout.sizes[j] for i, j in fields]
        widths = tuple(layout.widths[i] * layout.widths[j] for i, j in fields)
        self.table = Table(Layout(tuple(min(size, buckets) for size in full), widths), 1)
        self.any_hashed = max(full) > buckets
        # The members of a pair of fields: every column of one with every column of the other.
        members = [
            (one, other, layout.sizes[j] if size <= buckets else HASHED_STRIDE, size > buckets)
            for (i, j), size in zip(fields, full, strict=True)
            for one in layout.columns_of([i])
            for other in layout.columns_of([j])
        ]
        for name, values in zip(("first", "second", "strides", "hashed"), zip(*members, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def pair_ids(self, ids: Tensor) -> Tensor:
        """The pairs' ids (B, C'), a column for each pair of members, -1 where one of the two is unused."""
        one, other = ids.index_select(1, self.first).long(), ids.index_select(1, self.second).long()
        places = one * self.strides + other
        if self.any_hashed:
            places = torch.where(self.hashed, mixed(places) % self.buckets, places)
        return torch.where((one < 0) | (other < 0), -1, places) if self.table.layout.has_sets else places

    def forward(self, ids: Tensor) -> Tensor:
        weights: Tensor = self.table(self.pair_ids(ids))
        return weights


def mixed(x: Tensor) -> Tensor:
    """Hashes whole numbers to 0 .. 2^63 - 1, alike on all machines (SplitMix64, Steele et al. 2014).

    >>> mixed(torch.tensor([0, 1, 2]))
    tensor([7070836379803831727, 1227844342346046657, 1682153688901572302])
    """
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return (x ^ _shifted(x, 31)) & (2**63 - 1)


def _signed(number: int) -> int:
    return number - 2**64


def _shifted(x: Tensor, places: int) -> Tensor:
    """x shifted right, filled with zeros even where x is negative."""
    moved: Tensor = (x >> places) & (2 ** (64 - places) - 1)
    return moved
