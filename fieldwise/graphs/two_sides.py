"""The vectors of a graph's two sides, and the pairs of fields within and between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwise.graphs.graph import Graph
from fieldwise.graphs.lookups import Ids, Rows
from fieldwise.graphs.plain_parts import Part

Whole = NDArray[np.int64]


class Inside(NamedTuple):
    """Pairs within a side: their numbers (P,) among all pairs, and the places (P,) of both fields on that side."""

    numbers: Whole
    first: Whole
    second: Whole


class Between(NamedTuple):
    """Pairs of a row's field and a context's: their numbers (Fa, Fc), and whether the context's field is first."""

    numbers: Whole
    context_first: NDArray[np.bool_]


@dataclass(frozen=True)
class Side:
    """Some fields and their vectors (n, G, D); the context's side is `shared`, with one row for all."""

    graph: Graph
    vectors: str
    fields: tuple[int, ...]
    shared: bool

    @cached_property
    def by_field(self) -> str:
        """(G, n, D): fields lead, so that each pair can have its own matrix."""
        return self.graph.op("Transpose", self.vectors, perm=[1, 0, 2])

    def pairs(self, all_fields: int) -> Inside:
        found = list(itertools.combinations(range(len(self.fields)), 2))
        # A side's fields are in rising order, so that a pair's first field comes first here too.
        first, second = (np.array([pair[side] for pair in found], dtype=np.int64) for side in (0, 1))
        fields = np.array(self.fields, dtype=np.int64)
        return Inside(pair_numbers(fields[first], fields[second], all_fields), first, second)


@dataclass(frozen=True)
class PairTables:
    """Poly-2's table of pairs, which it has instead of vectors, and the ids of the sides."""

    looked: Rows
    table: Part
    ids: tuple[Ids, ...]


@dataclass(frozen=True)
class Sides:
    """The rows' side, and the context's if there is one; `fields` is the number of all fields.

    `one_thread`: the graph will run in one thread, so that ScatterND may add to a place several times.
    """

    graph: Graph
    rows: Side
    context: Side | None
    fields: int
    dim: int
    pair_tables: PairTables | None = None
    one_thread: bool = False

    @property
    def all(self) -> list[Side]:
        return [self.rows] if self.context is None else [self.context, self.rows]

    @property
    def inside(self) -> list[tuple[Side, Inside]]:
        """The sides that have pairs, with these pairs."""
        found = [(side, side.pairs(self.fields)) for side in self.all]
        return [(side, pairs) for side, pairs in found if len(pairs.numbers)]

    @property
    def between(self) -> Between:
        assert self.context is not None
        rows = np.array(self.rows.fields, dtype=np.int64)[:, None]
        context = np.array(self.context.fields, dtype=np.int64)[None, :]
        numbers = pair_numbers(np.minimum(rows, context), np.maximum(rows, context), self.fields)
        return Between(numbers, context < rows)

    def joined(self) -> str:
        """The vectors (B, F, D) of all fields in every row, in order, for parts that cannot be split."""
        if self.context is None:
            return self.rows.vectors
        graph = self.graph
        count = graph.op("Slice", graph.op("Shape", self.rows.vectors), [0], [1])
        repeated = graph.op("Expand", self.context.vectors, graph.op("Concat", count, [1, 1], axis=0))
        both = graph.op("Concat", repeated, self.rows.vectors, axis=1)
        return graph.take(both, np.argsort(self.context.fields + self.rows.fields), 1)


def pair_numbers(first: Whole, second: Whole, fields: int) -> Whole:
    """The numbers of pairs i < j in the order (0,1), (0,2) ... (1,2) ...

    >>> pair_numbers(np.array([0, 1]), np.array([2, 2]), 3)
    array([1, 2])
    """
    return np.asarray(first * fields - first * (first + 1) // 2 + second - first - 1)


def flat_places(part_places: NDArray[np.int64] | None, fields: Sequence[int], dim: int) -> tuple[Whole, Whole]:
    """Which of a side's flattened numbers (G * D) are features of Flatten, and their columns among all features."""
    own = (np.array(fields, dtype=np.int64)[:, None] * dim + np.arange(dim)).ravel()
    if part_places is None:
        return np.arange(len(own)), own
    kept = np.flatnonzero(np.isin(own, part_places))
    return kept, np.searchsorted(part_places, own[kept])
