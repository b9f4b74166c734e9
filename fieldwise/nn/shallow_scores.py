"""Scores of LR, FM and FFM by compiled loops, and which models these are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.data.schema import PAD
from fieldwise.loops import running
from fieldwise.nn.classifiers import Sum
from fieldwise.nn.embedding import Embedding, Table
from fieldwise.parts.field_aware.formula import FieldAwareProduct
from fieldwise.parts.pair_sum.formula import PairSum
from fieldwise.parts.ways import Way, no_loops

if TYPE_CHECKING:
    from fieldwise.nn.model import Model

# Rows that are worth a thread. Few rows take the same loops, so that a row has the same score alone and among many.
ROWS_PER_THREAD = 1000


def is_shallow(model: Model) -> bool:
    """Whether the model is LR, FM or FFM with one table of vectors at most; FFM with fields of one id."""
    one_table = model.embedding is None or (isinstance(model.embedding, Embedding) and len(model.embedding.tables) == 1)
    if not one_table or len(model.branches) != (model.embedding is not None) or not _same_rows(model):
        return False
    products = (PairSum,) if tables_of(model)[0].layout.has_sets else (PairSum, FieldAwareProduct)
    return all(type(one.interaction) in products and isinstance(one.classifier, Sum) for one in model.branches)


def tables_of(model: Model) -> list[Table]:
    return [part for part in model.modules() if isinstance(part, Table)]


def _same_rows(model: Model) -> bool:
    """Whether it has tables, in which every field has rows of its own, and no sequence is more than a mean.

    The loops move each field's rows by themselves, and take the rows of both tables for the same.
    """
    pools = isinstance(model.embedding, Embedding) and model.embedding.sequences is not None
    return bool(tables_of(model)) and not pools and not any(table.layout.like for table in tables_of(model))


def no_scores(model: Model, ids: NDArray[np.int32]) -> str:
    """Why the loops cannot score these ids (n, C) with this model, or ""."""
    if not is_shallow(model):
        return "not LR, FM or FFM (over fields of one id)"
    if any(part._forward_hooks for part in model.modules()):
        return "a part of it is watched or changed, and the loops would not call it"
    weights, layout = [table.weight.detach() for table in tables_of(model)], tables_of(model)[0].layout
    refused = no_loops(*(weight[:1] for weight in weights))
    if refused or weights[0].stride(1) != 1:
        return refused or "not contiguous"
    # The formula refuses ids that are not in the table.
    if not len(ids) or ids.shape[1] != layout.id_columns:
        return "ids outside the tables"
    columns = np.repeat(np.arange(layout.fields), layout.widths)
    # Behind the first id of a field is room for more, which may be empty.
    lowest = np.where(np.diff(columns, prepend=-1) > 0, 0, PAD)
    known = (ids.min(axis=0) >= lowest) & (ids.max(axis=0) < np.array(layout.sizes)[columns])
    return "" if known.all() else "ids outside the tables"


def scores(model: Model, ids: NDArray[np.int32]) -> NDArray[np.floating[Any]]:
    """The logits of ids (n, C): (n,)."""
    from fieldwise.nn import score_loops as loops
    from fieldwise.nn.wide_loops import fields_of, wide_scores

    weights, layout = [table.weight.detach() for table in tables_of(model)], tables_of(model)[0].layout
    vectors: Any = model.embedding.tables[0].weight if isinstance(model.embedding, Embedding) else None
    linear: Any = model.linear.weights.weight if model.linear is not None else None
    product = model.branches[0].interaction if vectors is not None else None
    aware = isinstance(product, FieldAwareProduct)
    dim = 0 if vectors is None else vectors.shape[1]
    shape = dim, product.dim if aware else 0, product.scale if aware else 1.0  # type: ignore[union-attr]
    bias, kernel = model.bias, loops.ffm_scores if aware else loops.fm_scores
    found = np.empty(len(ids), weights[0].numpy().dtype)
    numbers = *shape, 0.0 if bias is None else float(bias.detach()), *_flat(vectors, weights), *_flat(linear, weights)

    def part(low: int, high: int, thread: int) -> None:
        if layout.has_sets:
            wide_scores(ids, fields_of(layout), low, high, dim, *numbers[3:], np.empty((1, dim), found.dtype), found)
        else:
            kernel(ids, np.array(layout.offsets), low, high, *numbers, found)

    running.on_threads(part, len(ids), max(1, min(torch.get_num_threads(), len(ids) // ROWS_PER_THREAD)))
    return found


def _flat(weight: Tensor | None, others: list[Tensor]) -> tuple[NDArray[Any], int]:
    """A table's memory from its first number on, and the distance between its rows; for None another table and 0."""
    shown, apart = (others[0], 0) if weight is None else (weight.detach(), weight.stride(0))
    reach = (shown.shape[0] - 1) * shown.stride(0) + shown.shape[1]
    return shown.as_strided((reach,), (1,)).numpy(), apart


SHALLOW = Way("compiled loops", no_scores, lambda model, ids: scores(model, ids).astype(np.float32, copy=False))
