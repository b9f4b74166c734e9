"""Starting a network from a trained FM: its vectors, and its linear part where the network has one (section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from fieldwise.bundle.bundle import Bundle
from fieldwise.config.errors import ConfigError
from fieldwise.data.encode.encoder import Encoder
from fieldwise.nn.embedding import Embedding, Table
from fieldwise.nn.model import Model


@torch.no_grad()
def start_from(model: Model, encoder: Encoder, source: Bundle) -> list[str]:
    """Copies what the source and the model both have, field by field: v, w, b. Returns what it copied.

    FNN takes v, AFM takes v, w and b. Fields are matched by name and must have the same vocabulary, or rows would
    mean other values.
    """
    if not isinstance(source.model, Model) or not isinstance(source.model.embedding, Embedding):
        raise ConfigError(f"--init-from needs a run with embeddings, such as fm, found {source.config.model}")
    if not isinstance(model.embedding, Embedding):
        raise ConfigError("--init-from needs a model with embeddings, found one without")
    order = _same_fields(encoder, source.own_encoder)
    copied = ["v"]
    _copy_table(_only_table(model), _only_table(source.model), order, encoder, source.own_encoder)
    if model.linear is not None and source.model.linear is not None:
        copied.append("w")
        _copy_table(model.linear.weights, source.model.linear.weights, order, encoder, source.own_encoder)
        if model.linear.bias is not None and source.model.linear.bias is not None:
            copied.append("b")
            model.linear.bias.copy_(source.model.linear.bias)
    return copied


def _same_fields(encoder: Encoder, source: Encoder) -> list[int]:
    """The position of each of our fields in the source."""
    places = {code.field.name: place for place, code in enumerate(source.codes)}
    for code in encoder.codes:
        name = code.field.name
        if name not in places:
            raise ConfigError(f"--init-from: field '{name}' is not in the source; it has: {', '.join(places)}")
        if not code.same_ids(source.codes[places[name]]):
            raise ConfigError(
                f"--init-from: field '{name}' has another vocabulary there; train both on one prepared folder"
            )
    order = [places[code.field.name] for code in encoder.codes]
    if encoder.trees != source.trees or encoder.schema.history != source.schema.history:
        raise ConfigError("--init-from: the history or the trees are others there; train both on one prepared folder")
    return [*order, *range(len(source.codes), source.layout.fields)]


def _only_table(model: Model) -> Table:
    assert isinstance(model.embedding, Embedding)
    if len(model.embedding.tables) > 1:
        raise ConfigError("--init-from needs vectors of one size, found adaptive ones")
    table = model.embedding.tables[0]
    assert isinstance(table, Table)
    return table


def _copy_table(ours: Table, theirs: Table, order: list[int], encoder: Encoder, source: Encoder) -> None:
    if ours.weight.shape[1] != theirs.weight.shape[1]:
        found = f"{ours.weight.shape[1]} and {theirs.weight.shape[1]}"
        raise ConfigError(f"--init-from needs vectors of the same size (model.dim), found {found}")
    starts, offsets = encoder.layout.offsets, source.layout.offsets
    for start, size, place in zip(starts, encoder.layout.sizes, order, strict=True):
        rows: Tensor = theirs.weight[offsets[place] : offsets[place] + size]
        ours.put(start, rows)
