"""Every formula once more, row by row and pair by pair, on the vectors of one row; autograd follows them.

A row's vectors are a list of F tensors, each of its field's own size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fieldwise.data.schema import Layout
from fieldwise.nn.classifiers import DNN
from fieldwise.nn.embedding import Embedding, Table
from fieldwise.parts.attention.formula import AttentionPool
from fieldwise.parts.convolution.formula import Convolution
from fieldwise.parts.kernel.formula import KernelProduct
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.norm.norms import PairNorm
from fieldwise.parts.weights import Packed, Plain

Row = list[Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x if x > 0 else 0 * x,
    "elu": lambda x: x if x > 0 else x.exp() - 1,
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (x.exp() - 1)),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
}


def pairs(fields: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(fields) for j in range(i + 1, fields)]


def dot(a: Tensor, b: Tensor) -> Tensor:
    assert len(a) == len(b)
    return (a * b).sum()


def add(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum()


def activate(x: Tensor, name: str) -> Tensor:
    return torch.stack([ACTIVATIONS[name](unit) for unit in x])


def each_row(v: Tensor, dims: Sequence[int], features: Callable[[Row], Tensor]) -> Tensor:
    """The features (B, H) of padded vectors (B, F, D), whose fields have sizes `dims`."""
    return torch.stack([features([vector[:dim] for vector, dim in zip(row, dims, strict=True)]) for row in v])


def lookup(table: Table, layout: Layout, ids: Tensor) -> Row:
    """The vectors of one row's ids (C,) in the one table of these fields; a set's is its members' mean."""
    vectors, column = [], 0
    for start, width in zip(layout.offsets, layout.widths, strict=True):
        members = [start + int(i) for i in ids[column : column + width] if i >= 0]
        vectors.append(sum(table.weight[row] for row in members) / len(members))
        column += width
    return vectors


def embed(embedding: Embedding, layout: Layout, ids: Tensor) -> Row:
    """The vectors of one row's ids (C,), each of its own size: fields of one size share a table."""
    vectors: Row = [torch.empty(0)] * layout.fields
    for table, size in zip(embedding.tables, dict.fromkeys(embedding.dims), strict=True):
        own = [f for f, dim in enumerate(embedding.dims) if dim == size]
        columns = [c for f in own for c, field in enumerate(layout.column_fields) if field == f]
        assert isinstance(table, Table)
        found = lookup(table, layout.only(own), ids[columns])
        for f, vector in zip(own, found, strict=True):
            vectors[f] = vector
    return vectors


def hashed(number: int) -> int:
    """SplitMix64's answer without its highest bit, in whole numbers of any size."""
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
    return (number ^ (number >> 31)) % 2**63


def pair_weights(table: Tensor, layout: Layout, ids: Tensor, buckets: int) -> Tensor:
    """The weight of each pair of one row's ids (C,): the mean over all pairs of members of the two fields."""
    members = [[int(ids[c]) for c in layout.columns_of([f]) if ids[c] >= 0] for f in range(layout.fields)]
    found, start = [], 0
    for i, j in pairs(layout.fields):
        size = layout.sizes[i] * layout.sizes[j]
        stride = layout.sizes[j] if size <= buckets else 2**31
        places = [a * stride + b for a in members[i] for b in members[j]]
        if size > buckets:
            places = [hashed(place) % buckets for place in places]
        found.append(add([table[start + place, 0] for place in places]) / len(places))
        start += min(size, buckets)
    assert start == len(table)
    return torch.stack(found)


def flat(v: Row) -> Tensor:
    return torch.cat(v)


def pair_sum(v: Row) -> Tensor:
    return add([dot(v[i], v[j]) for i, j in pairs(len(v))])[None]


def inner_products(v: Row) -> Tensor:
    return torch.stack([dot(v[i], v[j]) for i, j in pairs(len(v))])


def kernels_of(part: KernelProduct, dims: Sequence[int]) -> list[Tensor]:
    """Each pair's kernel as a matrix k_i x k_j; kernels of different sizes lie one after the other."""
    entries, found = part.kernel.entries, []
    if part.kind == "num":
        return [number * torch.eye(dims[0], dtype=number.dtype) for number in entries]
    if part.kind == "vec":
        return [torch.diag(vector[0]) for vector in entries]
    entries = entries.flatten()
    for i, j in pairs(len(dims)):
        own, entries = entries[: dims[i] * dims[j]], entries[dims[i] * dims[j] :]
        found.append(own.view(dims[i], dims[j]))
    assert not len(entries)
    return found


def kernel_products(v: Row, kernels: Sequence[Tensor]) -> Tensor:
    found = []
    for (i, j), kernel in zip(pairs(len(v)), kernels, strict=True):
        terms = [v[i][a] * kernel[a, b] * v[j][b] for a in range(len(v[i])) for b in range(len(v[j]))]
        found.append(add(terms))
    return torch.stack(found)


def field_aware_products(v: Row, dim: int, scale: float = 1.0) -> Tensor:
    def part(i: int, j: int) -> Tensor:
        """The vector of field i for field j: one for each other field, in order."""
        slot = [f for f in range(len(v)) if f != i].index(j)
        return v[i][slot * dim : (slot + 1) * dim]

    return torch.stack([scale * dot(part(i, j), part(j, i)) for i, j in pairs(len(v))])


def norm(x: Tensor, over: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """x by the mean and biased variance of all numbers in `over`."""
    mean = over.sum() / over.numel()
    variance = ((over - mean) ** 2).sum() / over.numel()
    return (x - mean) / (variance + 1e-5).sqrt() * gain + shift


def norm_pairs(units: Row, part: nn.Module, kind: str) -> Row:
    """One row's units of each pair's sub-network, normed."""
    if kind == "none":
        return units
    assert isinstance(part, PairNorm)
    own = kind != "fused"
    gains = [part.gain[p if own else 0, 0] for p in range(len(units))]
    shifts = [part.shift[p if own else 0, 0] for p in range(len(units))]
    overs = units if kind == "layer" else [torch.cat(units)] * len(units)
    return [norm(*numbers) for numbers in zip(units, overs, gains, shifts, strict=True)]


def ragged(weights: Plain | Packed, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Each pair's matrix; where sizes differ, matrices lie one after the other."""
    entries, found = weights.entries.flatten(), []
    for rows, columns in shapes:
        own, entries = entries[: rows * columns], entries[rows * columns :]
        found.append(own.view(rows, columns))
    assert not len(entries)
    return found


def micro_networks(
    v: Row,
    part: MicroNetwork,
    widths: Sequence[int],
    product: bool = True,
    norm: str = "fused",
    last_norm: bool = True,
    activation_name: str = "relu",
) -> Tensor:
    x = [torch.cat([v[i], v[j], v[i] * v[j]] if product else [v[i], v[j]]) for i, j in pairs(len(v))]
    for layer, width in enumerate(widths):
        matrices = ragged(part.weights[layer], [(len(one), width) for one in x])
        biases = part.biases[layer]
        units = [
            torch.stack([dot(one, matrix[:, h]) + bias[0, h] for h in range(width)])
            for one, matrix, bias in zip(x, matrices, biases, strict=True)
        ]
        last = layer == len(widths) - 1
        x = norm_pairs(units, part.norms[layer], "none" if last and not last_norm else norm)
        if not last:
            x = [activate(one, activation_name) for one in x]
    return torch.cat(x)


def attention_weights(v: Row, part: AttentionPool) -> Tensor:
    scores = []
    for i, j in pairs(len(v)):
        hidden = [dot(w, v[i] * v[j]) + b for w, b in zip(part.attend.weight, part.attend.bias, strict=True)]
        scores.append(dot(part.score, activate(torch.stack(hidden), "relu")) / part.temperature)
    powers = torch.stack(scores).exp()
    return powers / powers.sum()


def attention_pool(v: Row, part: AttentionPool) -> Tensor:
    projection = torch.ones_like(v[0]) if part.projection is None else part.projection
    both = zip(attention_weights(v, part), pairs(len(v)), strict=True)
    return add([a * dot(projection, v[i] * v[j]) for a, (i, j) in both])[None]


def convolution(v: Row, part: Convolution) -> Tensor:
    x = torch.stack(v)  # (positions, channels)
    for filters, kept in zip((c.weight for c in part.convolutions), part.keep, strict=True):
        width, positions = filters.shape[2], len(x) - filters.shape[2] + 1
        channels = []
        for one in filters:
            found = [add([dot(one[:, w], x[at + w]) for w in range(width)]) for at in range(positions)]
            largest = sorted(found, key=Tensor.item)[-kept:]
            channels.append(activate(torch.stack([number for number in found if number in largest]), "relu"))
        x = torch.stack(channels, dim=1)
    return x.T.flatten()


def dnn(features: Tensor, part: DNN, norm_kind: str = "layer", activation: str = "relu") -> Tensor:
    """Features (B, H) -> logits (B,); batch norm by the statistics of these rows."""
    affines = [layer for layer in part.layers if isinstance(layer, nn.Linear)]
    norms = [layer for layer in part.layers if isinstance(layer, (nn.LayerNorm, nn.BatchNorm1d))]
    x = list(features)
    for number, layer in enumerate(affines):
        last = number == len(affines) - 1
        weight = layer.weight
        if norm_kind == "weight" and not last:
            gains, directions = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
            weight = torch.stack([g * d / dot(d, d).sqrt() for g, d in zip(gains, directions, strict=True)])
        x = [torch.stack([dot(w, row) + b for w, b in zip(weight, layer.bias, strict=True)]) for row in x]
        if last:
            break
        if norms:
            gain, shift = norms[number].weight, norms[number].bias
            if norm_kind == "layer":
                x = [norm(row, row, gain, shift) for row in x]
            else:
                units = zip(torch.stack(x, dim=1), gain, shift, strict=True)
                x = list(torch.stack([norm(unit, unit, g, s) for unit, g, s in units], dim=1))
        x = [activate(row, activation) for row in x]
    return torch.cat(x)
