"""Parts -> ONNX graphs: for complete rows, for candidates that share a context, and for explanations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.data.schema import Layout
from fieldwise.graphs.features import Block, dnn, summed, two_streams
from fieldwise.graphs.graph import Graph
from fieldwise.graphs.lookups import Ids, Rows, pair_weights, vectors
from fieldwise.graphs.plain_parts import Part
from fieldwise.graphs.two_sides import PairTables, Side, Sides
from fieldwise.parts.forms import features, forms, summands

# Declares a table's array in the graph and returns its name there.
Declare = Callable[[Graph, str, NDArray[Any]], str]
IDS, CONTEXT, LOGITS = "ids", "context", "logits"
# The types that arrays may have: tables, indices, the bytes of a traced graph, and all others.
TABLES, FLOATS = (np.float32, np.float16, np.int8), (np.float32,)
OTHERS: dict[str, tuple[Any, ...]] = {"places": (np.int64,), "onnx": (np.int8,)}


def layout_of(network: Part) -> Layout:
    like = tuple(network["like"]) if "like" in network.settings else ()
    return replace(Layout(*(tuple(network[name]) for name in ("sizes", "widths", "ordered"))), like=like)


def check(network: Part, layout: Layout) -> None:
    """Raises ValueError if a network is not for rows of this layout, or a table has no row for some id."""
    sizes = layout.sizes
    if layout_of(network) != Layout(sizes, layout.widths, layout.ordered, like=layout.like):
        raise ValueError("the exported network has other fields than its encoder; export it again")
    for path, part in network.walk():
        for name, array in part.arrays.items():
            kinds = TABLES if part.kind == "table" and name == "weight" else OTHERS.get(name, FLOATS)
            scaled = name == "onnx" or (name == "weight" and "scale" in part.arrays)
            if array.dtype not in kinds or (array.dtype == np.int8) != scaled:
                raise ValueError(f"the exported network has no {array.dtype} in '{path + name}'; export it again")
    for part in network.parts:
        if part.kind == "pair_table":
            pairs = itertools.combinations(sizes, 2)
            _check_rows(part.parts[0], sum(min(one * other, part["buckets"]) for one, other in pairs))
        elif part.kind in ("embedding", "linear"):
            own = layout.apart if part.kind == "linear" or part.settings.get("apart") else layout
            for table in part.parts:
                _check_rows(table, own.only(table["fields"]).rows)


def _check_rows(table: Part, rows: int) -> None:
    for name, array in table.arrays.items():
        if array.ndim != 2 or len(array) != rows:
            found = " x ".join(map(str, array.shape))
            raise ValueError(f"a table of the exported network needs {rows:,} rows, found {name} of {found}")


def as_input(graph: Graph, name: str, array: NDArray[Any]) -> str:
    """Declares a table as an input, so all graphs of an engine read the same memory."""
    return graph.input(name, array.dtype, array.shape)


def tables_of(network: Part) -> dict[str, NDArray[Any]]:
    """The arrays of all tables by their names."""
    tables = [(path, part) for path, part in network.walk() if part.kind == "table"]
    return {path + name: array for path, part in tables for name, array in part.arrays.items()}


def is_exact(network: Part) -> bool:
    """Whether the logit is a sum over fields and pairs: no traced part, no DNN in a branch."""
    classifiers = [part.parts[1].kind for part in network.parts if part.kind == "branch"]
    return set(classifiers) <= {"sum"} and all(part.kind != "traced" for part in network.parts)


def whole_part(network: Part) -> str:
    """The name of a part that needs all fields of a row at once, which rules out a separate context; empty if none."""
    traced = [part["of"] for part in network.parts if part.kind == "traced"]
    whole = [part.kind for _, part in network.walk() if part.kind in forms() and forms()[part.kind].whole]
    return next(iter(traced + whole), "")


def graph_of(network: Part, declare: Declare, context: Sequence[int] = (), one_thread: bool = False) -> Any:
    """ids (B, C) -> logits (B,); with context fields, ids (B, C') of the others and context (1, C'') -> logits."""
    build = Build(network, declare, context)
    if build.traced is not None:
        logits = build.graph.inlined(build.traced.arrays["onnx"].tobytes(), build.looked_up(build.traced["inputs"]))
        build.graph.output(logits, LOGITS, np.float32, ("rows",))
        return build.graph.model()
    parts = []
    if build.linear is not None:
        parts += [build.graph.sum(value, [1, 2]) for value, _ in build.linear_weights()]
        parts.append(build.graph.constant(np.array([build.linear["bias"]], dtype=np.float32)))
    if build.branches:
        sides = replace(build.sides(), one_thread=one_thread)
        parts += [_logit(build.graph, branch, features(branch.parts[0], sides)) for branch in build.branches]
    build.graph.output(build.graph.total(parts), LOGITS, np.float32, ("rows",))
    return build.graph.model()


def _logit(graph: Graph, branch: Part, blocks: list[Block]) -> str:
    """What a branch adds to the logit, (n,); one that was exported before branches had shares adds all of it."""
    classifier, share = branch.parts[1], branch.settings.get("share", 1.0)
    finish = {"sum": lambda *inputs: summed(graph, blocks), "two_streams": two_streams}.get(classifier.kind, dnn)
    found = finish(graph, classifier, blocks)
    return found if share == 1 else graph.op("Mul", found, share)


def terms_of(network: Part, declare: Declare) -> Any:
    """ids (B, C) -> `linear` (B, F), the weight of each field, and `pairs` (B, P), the term of each pair, if any."""
    build = Build(network, declare)
    graph, fields = build.graph, build.layout.fields
    if build.linear is not None:
        ((value, order),) = build.linear_weights()
        weights = graph.take(graph.op("Squeeze", value, [2]), np.argsort(order), 1)
        graph.output(weights, "linear", np.float32, ("rows", fields))
    if build.branches:
        sides = build.sides()
        found = [_pair_terms(branch.parts[0], sides, fields * (fields - 1) // 2) for branch in build.branches]
        graph.output(graph.total(found), "pairs", np.float32, ("rows", fields * (fields - 1) // 2))
    return graph.model()


def _pair_terms(interaction: Part, sides: Sides, pairs: int) -> str:
    """The term of each pair, (B, P)."""
    (block,) = summands(interaction, sides)
    return sides.graph.sum(sides.graph.reshape(block.value, [0, pairs, -1]), [2])


class Build:
    """A graph with its tables and ids declared; looks up vectors."""

    def __init__(self, network: Part, declare: Declare, context: Sequence[int] = ()) -> None:
        self.network, self.layout, self.graph = network, layout_of(network), Graph()
        rows = [field for field in range(self.layout.fields) if field not in set(context)]
        self.ids = [Ids.of(self.graph, IDS, rows, self.layout, "rows")]
        if context:
            self.ids.insert(0, Ids.of(self.graph, CONTEXT, sorted(context), self.layout, 1))
        found = {part.kind: part for part in network.parts}
        self.linear, self.pair_table, self.embedding = (found.get(k) for k in ("linear", "pair_table", "embedding"))
        self.traced = found.get("traced")
        self.branches = [part for part in network.parts if part.kind == "branch"]
        names = {
            id(part): {name: declare(self.graph, path + name, array) for name, array in part.arrays.items()}
            for path, part in network.walk()
            if part.kind == "table"
        }
        self.looked = Rows(self.graph, names)

    def looked_up(self, names: Sequence[str]) -> list[str]:
        """The inputs of a traced model: ids of complete rows, or linear weights (B, F, 1) and vectors (B, F, D)."""
        (ids,), found = self.ids, {IDS: self.ids[0].value}
        if self.linear is not None:
            ((value, order),) = self.linear_weights()
            found["linear"] = self.graph.take(value, np.argsort(order), 1)
        if self.embedding is not None:
            found["vectors"] = self._vectors(ids)
        elif self.pair_table is not None:
            pairs = range(self.layout.fields * (self.layout.fields - 1) // 2)
            found["vectors"] = self.graph.op("Unsqueeze", pair_weights(self.looked, self.pair_table, ids, pairs), [2])
        return [found[name] for name in names]

    def linear_weights(self) -> list[tuple[str, list[int]]]:
        """The weights (n, G, 1) of each side's fields, and their order."""
        assert self.linear is not None
        return [vectors(self.looked, self.linear.parts[0], ids, ids.fields, self.layout.apart) for ids in self.ids]

    def sides(self) -> Sides:
        """The vectors of the context and of the candidates."""
        if self.embedding is None:
            assert self.pair_table is not None
            found, dim = ["" for _ in self.ids], 1
            tables = PairTables(self.looked, self.pair_table, tuple(self.ids))
        else:
            found, dim, tables = [self._vectors(ids) for ids in self.ids], self.embedding["dim"], None
        shared = [len(self.ids) == 2, False][-len(self.ids) :]
        each = [Side(self.graph, v, i.fields, s) for v, i, s in zip(found, self.ids, shared, strict=True)]
        return Sides(self.graph, each[-1], each[0] if len(each) == 2 else None, self.layout.fields, dim, tables)

    def _vectors(self, ids: Ids) -> str:
        """The vectors (n, G, D) of a side's fields in order; shorter ones are padded with zeros."""
        assert self.embedding is not None
        graph, found, order = self.graph, [], []
        layout = self.layout.apart if self.embedding.settings.get("apart") else self.layout
        for table in self.embedding.parts:
            if not set(table["fields"]) & set(ids.fields):
                continue
            value, fields = vectors(self.looked, table, ids, ids.fields, layout)
            missing = self.embedding["dim"] - table.arrays["weight"].shape[1]
            found.append(graph.op("Pad", value, [0, 0, 0, 0, 0, missing]) if missing else value)
            order += fields
        joined = found[0] if len(found) == 1 else graph.op("Concat", *found, axis=1)
        return joined if order == list(ids.fields) else graph.take(joined, np.argsort(order), 1)
