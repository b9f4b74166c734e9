"""A torch model -> plain parts. The only module of this room that needs torch; serving never imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError
from fieldwise.data.schema import Layout
from fieldwise.export.quantize import stored_table
from fieldwise.graphs.plain_parts import Part
from fieldwise.nn.classifiers import DNN, Sum
from fieldwise.nn.crosses import PairTable
from fieldwise.nn.embedding import Embedding, Table
from fieldwise.nn.model import Branch, Model
from fieldwise.parts import interactions as parts_of
from fieldwise.parts.attention.formula import AttentionPool
from fieldwise.parts.convolution.formula import Convolution
from fieldwise.parts.micro.formula import MicroNetwork
from fieldwise.parts.norm.formula import EPSILON, PairNorm


def network(model: Model, layout: Layout, tables: str = "fp32") -> Part:
    """The model over fields of this layout: parts embedding, linear and one for each branch, where it has them."""
    model = model.eval()
    found = []
    if isinstance(model.embedding, Embedding):
        found.append(_embedding(model.embedding, layout, tables))
    elif isinstance(model.embedding, PairTable):
        table = _table(model.embedding.table, list(range(len(model.embedding.table.layout.sizes))), tables)
        found.append(Part("pair_table", {"buckets": model.embedding.buckets}, parts=(table,)))
    if model.linear is not None:
        bias = 0.0 if model.linear.bias is None else float(model.linear.bias.detach())
        table = _table(model.linear.weights, list(range(layout.fields)), tables)
        found.append(Part("linear", {"bias": bias}, parts=(table,)))
    found += [_branch(branch) for branch in model.branches if isinstance(branch, Branch)]
    shape = {"sizes": layout.sizes, "widths": layout.widths, "ordered": layout.ordered}
    return Part("network", {key: list(values) for key, values in shape.items()}, parts=tuple(found))


def _embedding(embedding: Embedding, layout: Layout, tables: str) -> Part:
    sizes = dict.fromkeys(embedding.dims)
    groups = [[f for f, d in enumerate(embedding.dims) if d == size] for size in sizes]
    own = [_table(table, group, tables) for table, group in zip(embedding.tables, groups, strict=True)]
    return Part("embedding", {"dim": embedding.dim}, parts=tuple(own))


def _table(table: nn.Module, fields: list[int], tables: str) -> Part:
    assert isinstance(table, Table)
    return Part("table", {"fields": fields}, stored_table(_array(table.weight), tables))


def _branch(branch: Branch) -> Part:
    return Part("branch", parts=(interaction(branch.interaction), _classifier(branch.classifier)))


def interaction(part: nn.Module) -> Part:
    """The part that an interaction is."""
    if type(part) not in INTERACTIONS:
        raise ConfigError(f"no ONNX form of {type(part).__name__}; add one to export/convert.py and export/products.py")
    return INTERACTIONS[type(part)](part)


def _flatten(part: Any) -> Part:
    return Part("flatten") if part.places is None else Part("flatten", arrays={"places": _array(part.places)})


def _concat(part: Any) -> Part:
    return Part("concat", {"widths": [each.width for each in part.parts]}, parts=tuple(map(interaction, part.parts)))


def _normed(part: Any) -> Part:
    return Part("normed", {"epsilon": EPSILON}, _norm(part.norm), (interaction(part.part),))


def _kernel(part: Any) -> Part:
    kind = "kernel_sum" if isinstance(part, parts_of.KernelSum) else "kernel"
    return Part(kind, {"of": part.kind}, {"kernel": _array(part.kernel())})


def _field_aware(part: Any) -> Part:
    return Part("field_aware", {"dim": part.dim, "scale": part.scale})


def _micro(part: Any) -> Part:
    if not isinstance(part.activation, nn.ReLU):
        raise ConfigError(f"a micro network's activation must be ReLU for ONNX, found {type(part.activation).__name__}")
    layers = []
    for weight, bias, norm in zip(part.weights, part.biases, part.norms, strict=True):
        arrays, kind = {"weight": _array(weight()), "bias": _array(bias)}, "none"
        if isinstance(norm, PairNorm):
            kind = "layer" if norm.alone else "fused"
            arrays |= {"gain": _array(norm.gain), "shift": _array(norm.shift)}
        layers.append(Part("layer", {"norm": kind}, arrays))
    return Part("micro", {"product": part.product, "epsilon": EPSILON}, parts=tuple(layers))


def _attention(part: Any) -> Part:
    arrays = {"weight": _array(part.attend.weight).T, "bias": _array(part.attend.bias), "score": _array(part.score)}
    dim = part.attend.weight.shape[1]
    arrays["projection"] = np.ones(dim, dtype=np.float32) if part.projection is None else _array(part.projection)
    return Part("attention", {"temperature": part.temperature}, arrays)


def _convolution(part: Any) -> Part:
    weights = {f"weight_{number}": _array(each.weight) for number, each in enumerate(part.convolutions)}
    return Part("convolution", {"keep": part.keep}, weights)


INTERACTIONS: dict[type[nn.Module], Callable[[Any], Part]] = {
    parts_of.Flatten: _flatten,
    parts_of.Concat: _concat,
    parts_of.Normed: _normed,
    parts_of.PairSum: lambda part: Part("pair_sum"),
    parts_of.InnerProduct: lambda part: Part("inner"),
    parts_of.KernelProduct: _kernel,
    parts_of.KernelSum: _kernel,
    parts_of.FieldAwareProduct: _field_aware,
    parts_of.PairWeights: lambda part: Part("pair_weights"),
    MicroNetwork: _micro,
    AttentionPool: _attention,
    Convolution: _convolution,
}


def _classifier(classifier: nn.Module) -> Part:
    if isinstance(classifier, Sum):
        return Part("sum")
    if not isinstance(classifier, DNN):
        raise ConfigError(f"no ONNX form of {type(classifier).__name__}; add one to export/convert.py")
    layers: list[Part] = []
    for layer in classifier.layers:
        if isinstance(layer, nn.Linear):
            weights = {"weight": _array(layer.weight).T, "bias": _array(layer.bias)}
            layers.append(Part("layer", {"norm": False, "activation": ""}, weights))
        elif isinstance(layer, nn.LayerNorm):
            layers[-1].settings["norm"] = True
            layers[-1].arrays.update(_norm(layer))
        elif isinstance(layer, nn.BatchNorm1d):
            _fold(layer, layers[-1].arrays)
        elif not isinstance(layer, nn.Dropout):
            layers[-1].settings["activation"] = ACTIVATIONS[type(layer)]
    return Part("dnn", {"epsilon": EPSILON}, parts=tuple(layers))


ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "Relu", nn.ELU: "Elu", nn.SELU: "Selu", nn.Tanh: "Tanh"}


def _fold(norm: nn.BatchNorm1d, arrays: dict[str, NDArray[Any]]) -> None:
    """Batch norm with its running statistics is an affine map: it goes into the layer before it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, variance, gain, shift = (
        _array(value).astype(np.float64) for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    gain = gain / np.sqrt(variance + norm.eps)
    arrays["weight"] = (arrays["weight"] * gain).astype(np.float32)
    arrays["bias"] = ((arrays["bias"] - mean) * gain + shift).astype(np.float32)


def _norm(norm: nn.LayerNorm) -> dict[str, NDArray[Any]]:
    return {"gain": _array(norm.weight), "shift": _array(norm.bias)}


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.detach().cpu().numpy()
    return found
