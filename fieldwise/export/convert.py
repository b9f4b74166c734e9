"""A torch model -> plain parts or, if a part has no ONNX form, tables and one traced graph after them.

Only this module and trace.py need torch here; serving imports neither.
"""

from __future__ import annotations

from torch import nn

from fieldwise.data.schema import Layout
from fieldwise.export import trace
from fieldwise.export.quantize import stored_table
from fieldwise.graphs.plain_parts import Part
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Embedding, Linear, Table
from fieldwise.nn.model import Branch, Model
from fieldwise.parts.interactions import Interaction, array, plain_part_of
from fieldwise.parts.sequence.formula import Pool


def network(model: Model, layout: Layout, tables: str = "fp32") -> Part:
    """The model over fields of this layout: the parts embedding, linear and one for each branch, as far as it has them.

    A model with a part that has no ONNX form, or that combines parts in its own way, has one traced part for branches.
    """
    model, found = model.cpu().eval(), []
    shape = {key: list(getattr(layout, key)) for key in ("sizes", "widths", "ordered")}
    shape |= {"like": list(layout.like)} if layout.like else {}
    if not _known_tables(model):
        of = _innermost_lookup(model)
        return Part("network", shape, parts=(trace.traced(model, layout, of, from_ids=True),))
    if isinstance(model.embedding, Embedding):
        found.append(_embedding(model.embedding, tables))
    elif isinstance(model.embedding, PairTable):
        table = _table(model.embedding.table, list(range(len(model.embedding.table.layout.sizes))), tables)
        found.append(Part("pair_table", {"buckets": model.embedding.buckets}, parts=(table,)))
    if model.linear is not None:
        bias = 0.0 if model.linear.bias is None else float(model.linear.bias.detach())
        table = _table(model.linear.weights, list(range(layout.fields)), tables)
        found.append(Part("linear", {"bias": bias}, parts=(table,)))
    unknown = _unknown(model)
    if unknown:
        found.append(trace.traced(model, layout, unknown))
    else:
        found += [_branch(branch) for branch in model.branches if isinstance(branch, Branch)]
    return Part("network", shape, parts=tuple(found))


def _known_tables(model: Model) -> bool:
    """Whether `graphs/lookups.py` can look up the ids."""
    kinds = (Embedding, PairTable, type(None)), (Linear, type(None))
    own = all(getattr(type(model), name) is getattr(Model, name) for name in ("lookup", "forward"))
    known = own and type(model.embedding) in kinds[0] and type(model.linear) in kinds[1]
    return known and getattr(model.embedding, "sequences", None) is None


def _innermost_lookup(model: Model) -> str:
    """The name of what looks ids up in its own way: the model, its embedding, or the part that pools a sequence."""
    pools = [part for part in model.modules() if isinstance(part, Pool)]
    return type(model if type(model) is not Model else pools[0] if pools else model.embedding).__name__


def _unknown(model: Model) -> str:
    """The name of the first part that has no ONNX form; empty if all have one."""
    if type(model) is not Model:
        return type(model).__name__
    branches = [branch for branch in model.branches if isinstance(branch, Branch)]
    parts = [part for branch in branches for part in (branch.interaction, branch.classifier)]
    return next((_innermost(part) for part in parts if plain_part_of(part) is None), "")


def _innermost(part: nn.Module) -> str:
    """The name of the part without an ONNX form; inside of a composed part, of the innermost."""
    without = [each for each in part.modules() if isinstance(each, Interaction) and plain_part_of(each) is None]
    return type(without[-1] if without else part).__name__


def _embedding(embedding: Embedding, tables: str) -> Part:
    sizes = dict.fromkeys(embedding.dims)
    groups = [[f for f, d in enumerate(embedding.dims) if d == size] for size in sizes]
    own = [_table(table, group, tables) for table, group in zip(embedding.tables, groups, strict=True)]
    apart = {} if embedding.layout.like else {"apart": True}
    return Part("embedding", {"dim": embedding.dim, **apart}, parts=tuple(own))


def _table(table: object, fields: list[int], tables: str) -> Part:
    assert isinstance(table, Table)
    return Part("table", {"fields": fields}, stored_table(array(table.weight), tables))


def _branch(branch: Branch) -> Part:
    parts = [plain_part_of(part) for part in (branch.interaction, branch.classifier)]
    share = {} if branch.share == 1 else {"share": branch.share}
    return Part("branch", share, parts=tuple(part for part in parts if part is not None))
