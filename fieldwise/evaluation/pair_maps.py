"""Field pairs in a network's weights and parts: heat maps, and predictions without some pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwise.data.schema import Layout
from fieldwise.nn.classifiers import Sum
from fieldwise.nn.embedding import Embedding, Table
from fieldwise.nn.model import Branch, Model
from fieldwise.parts.attention.formula import AttentionPool
from fieldwise.parts.field_aware.formula import FieldAwareProduct
from fieldwise.parts.inner.formula import InnerProduct
from fieldwise.parts.interactions import Interaction, Pairwise
from fieldwise.parts.kernel.formula import KernelProduct, KernelSum
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.pair_sum.formula import PairSum

Matrix = NDArray[np.float64]
# Rows in one call of a model.
CALL_ROWS = 2048


def pair_part(model: Any) -> Interaction | None:
    """The part of a network that processes pairs of fields, if it has one; with two of them neither tells all."""
    if not isinstance(model, Model):
        return None
    found = [part for part in model.modules() if isinstance(part, Pairwise | PairSum)]
    return found[0] if len(found) == 1 else None


def tells_pairs(model: Any) -> bool:
    """Whether the size of a pair's output shows its effect: it is a summand of the logit, or of a micro network."""
    part = pair_part(model)
    sums = any(
        isinstance(b, Branch) and b.interaction is part and isinstance(b.classifier, Sum) for b in _branches(model)
    )
    return isinstance(part, MicroNetwork) or sums


def _branches(model: Any) -> Sequence[Any]:
    return list(model.branches) if isinstance(model, Model) else []


def pair_values(part: Interaction, v: Tensor) -> Tensor:
    """The output of each pair, (B, P, d): a product or a term of the logit (d = 1), or a micro network's outputs."""
    if isinstance(part, PairSum):
        products: Tensor = InnerProduct([v.shape[2]] * v.shape[1]).forward(v)
        return products[:, :, None]
    if isinstance(part, KernelSum):
        return part.products(v)[:, :, None]
    if isinstance(part, AttentionPool):
        products = part.products(v)
        weighted = part.attention(products)[:, :, None] * products
        terms: Tensor = weighted if part.projection is None else weighted * part.projection
        return terms.sum(dim=2, keepdim=True)
    assert isinstance(part, Pairwise)
    found: Tensor = part.forward(v).unflatten(1, (part.pairs, -1))
    return found


def mean_vectors(model: Model, layout: Layout, counts: NDArray[Any] | None = None) -> Tensor:
    """The mean vector of each field, (F, D): over its categories or, weighted by `counts` (N,), over occurrences."""
    assert isinstance(model.embedding, Embedding)
    found = torch.zeros(layout.fields, model.embedding.dim, dtype=torch.float64)
    sizes = list(model.embedding.dims)
    weights = torch.ones(layout.rows, dtype=torch.float64) if counts is None else torch.tensor(counts).double()
    offsets = layout.offsets
    for table, size in zip(model.embedding.tables, dict.fromkeys(sizes), strict=True):
        assert isinstance(table, Table)
        fields = [field for field, own in enumerate(sizes) if own == size]
        for field, start in zip(fields, table.layout.offsets, strict=True):
            rows = table.weight[start : start + layout.sizes[field]].detach().double().cpu()
            own = weights[offsets[field] : offsets[field] + layout.sizes[field], None]
            found[field, :size] = (rows * own).sum(dim=0) / own.sum().clamp(min=1e-12)
    return found


def counts_of(ids: NDArray[np.int32], layout: Layout) -> NDArray[np.int64]:
    """How often each category of each field occurs in rows (n, C): (N,)."""
    found, offsets = np.zeros(layout.rows, dtype=np.int64), layout.offsets
    for column, field in enumerate(layout.column_fields):
        own, size = ids[:, column], layout.sizes[field]
        found[offsets[field] : offsets[field] + size] += np.bincount(own[own >= 0], minlength=size)
    return found


@torch.inference_mode()
def mean_map(model: Model, layout: Layout, counts: NDArray[Any] | None = None) -> Matrix | None:
    """The absolute product of two fields' mean vectors (section 5.3.1), (F, F); None for a network without products.

    FM takes the inner product, FFM that of the two parts meant for each other, KFM the product with the pair's kernel.
    """
    part = pair_part(model)
    if not isinstance(part, PairSum | InnerProduct | KernelProduct | FieldAwareProduct | AttentionPool):
        return None
    v = mean_vectors(model, layout, counts)[None]
    device = next(model.parameters()).device
    own = PairSum([v.shape[2]]) if isinstance(part, AttentionPool) else part
    values = pair_values(own, v.float().to(device))[0, :, 0]
    return as_map(values.abs().double().cpu().numpy(), layout.fields)


@torch.inference_mode()
def variance_map(model: Model, ids: NDArray[np.int32], layout: Layout) -> Matrix:
    """The standard deviation of each pair's output over rows, the root of its summed variances: (F, F)."""
    _, deviation = _moments(model, ids)
    return as_map(np.sqrt((deviation**2).sum(axis=1)), layout.fields)


def as_map(values: NDArray[Any], fields: int) -> Matrix:
    """Values of the pairs, in their order, as a symmetric matrix with an empty diagonal."""
    found = np.zeros((fields, fields))
    found[np.triu_indices(fields, k=1)] = values
    return found + found.T


def _moments(model: Model, ids: NDArray[np.int32]) -> tuple[Matrix, Matrix]:
    """Mean and standard deviation of each pair's output over rows: (P, d) each."""
    part, device = pair_part(model), next(model.parameters()).device
    assert part is not None
    total, squares = torch.zeros(()), torch.zeros(())
    model.eval()
    for start in range(0, len(ids), CALL_ROWS):
        rows = torch.from_numpy(np.array(ids[start : start + CALL_ROWS])).to(device)
        values = pair_values(part, model.lookup(rows)["vectors"]).double()
        total, squares = total + values.sum(dim=0), squares + values.square().sum(dim=0)
    mean, square = (np.asarray((found / len(ids)).cpu()) for found in (total, squares))
    return mean, np.sqrt(np.maximum(square - mean**2, 0))


@contextmanager
def without_pairs(model: Model, dropped: Sequence[int], ids: NDArray[np.int32]) -> Iterator[None]:
    """Within the block these pairs carry no information: each outputs its mean over the rows `ids`."""
    part = pair_part(model)
    assert part is not None
    with torch.inference_mode():
        means = torch.from_numpy(_moments(model, ids)[0]).to(next(model.parameters()).device)
    places = torch.tensor(list(dropped), dtype=torch.long, device=means.device)

    def replaced(module: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        mean = means[places].to(output.dtype)
        if isinstance(module, PairSum | KernelSum | AttentionPool):
            change = mean - pair_values(module, inputs[0])[:, places]
            return output + change.sum(dim=(1, 2))[:, None]
        values: Tensor = output.unflatten(1, (len(means), -1)).clone()
        values[:, places] = mean
        return values.flatten(1)

    handle = part.register_forward_hook(replaced)
    try:
        yield
    finally:
        handle.remove()
