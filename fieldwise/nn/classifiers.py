"""From features to a logit: a plain sum, the one DNN, or two of them that multiply each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.nn.members import Heads, Scales, SharedLayer
from fieldwise.parts.affine.formula import affine, plain_layer
from fieldwise.parts.initial import OUTPUT_SCALE, xavier_
from fieldwise.parts.interactions import array
from fieldwise.parts.norm.formula import activated
from fieldwise.parts.norm.norms import EPSILON, BatchNorm, activation, affine_of
from fieldwise.parts.ways import Way, chosen, no_score_kernels

NORMS = ("layer", "batch", "weight", "none")


class Sum(nn.Module):
    """The features' sum: (B, H) -> (B,)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.sum(dim=1)

    def plain_part(self) -> Part:
        """As an interaction's."""
        return Part("sum")


@dataclass(frozen=True)
class Layers:
    """The DNN's hidden layers: widths, norm before the activation, and the probability of dropping a unit.

    `members` k > 1 makes k networks of it that share their matrices (nn/members.py).
    """

    hidden: Sequence[int] = (400, 400)
    norm: str = "layer"
    activation: str = "relu"
    dropout: float = 0.0
    members: int = 1

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ConfigError(unknown("norm", self.norm, NORMS))
        check_sizes("hidden", self.hidden)
        check_sizes("members", [self.members])
        check_dropout(self.dropout)


# The layers of the networks that end in a DNN, and none at all: the last one alone.
DEEP, LINEAR = Layers(dropout=0.5), Layers(())


def _no_kernels(part: DNN, features: Tensor) -> str:
    return no_score_kernels(part, features) if part.common else "not layer norm with ReLU"


def _by_triton(part: DNN, features: Tensor) -> Tensor:
    from fieldwise.parts.norm.triton import layers

    affines = [layer for layer in part.layers if isinstance(layer, nn.Linear)]
    norms = [layer for layer in part.layers if isinstance(layer, nn.LayerNorm)]
    return layers(features, list(zip(affines[:-1], norms, strict=True)), affines[-1])


TRITON = Way("Triton, for scores", _no_kernels, _by_triton)


def hidden_layers(width: int, options: Layers) -> list[nn.Module]:
    """Affine, norm, activation and dropout of each hidden layer; of several members, behind their first scales."""
    layers: list[nn.Module] = [Scales(options.members, width, signs=True)] if options.members > 1 else []
    for number, out in enumerate(options.hidden):
        weight_norm = options.norm == "weight"
        if options.members > 1:
            shared = affine(width, out, weight_norm, bias=False)
            layers.append(SharedLayer(shared, width, out, options.members, first=not number))
        else:
            layers.append(affine(width, out, weight_norm))
        layers += [*_norm(out, options.norm), activation(options.activation)]
        if options.dropout:
            layers.append(nn.Dropout(options.dropout))
        width = out
    return layers


def through(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """The last layer's units; a norm and the activation after it are computed together."""
    rest = iter(layers)
    for layer in rest:
        x = activated(x, layer, next(rest)) if isinstance(layer, nn.LayerNorm) else layer(x)
    return x


class DNN(nn.Module):
    """Fully connected layers and one output: (B, width) -> (B,), or (B, k) of k members.

    Each hidden layer is affine, norm, activation, dropout; the last is affine alone.
    """

    def __init__(self, width: int, options: Layers) -> None:
        super().__init__()
        self.members, out = options.members, options.hidden[-1] if options.hidden else width
        layers = hidden_layers(width, options)
        last = Heads(out, self.members) if self.members > 1 else affine(out, 1, scale=OUTPUT_SCALE)
        self.layers = nn.Sequential(*layers, last)
        # Layers that the GPU's kernel for scores knows.
        simple = options.norm == "layer" and options.activation == "relu" and self.members == 1
        self.common = simple and min(options.hidden, default=1) > 1

    @property
    def bias(self) -> Tensor:
        bias: Tensor = self.layers[-1].bias  # type: ignore[assignment]
        return bias

    @chosen(TRITON)
    def forward(self, features: Tensor) -> Tensor:
        x = through(self.layers, features)
        return x if self.members > 1 else x.squeeze(1)

    def plain_part(self) -> Part | None:
        """As an interaction's; batch norm and weight norm are folded into the layers' weights."""
        return None if self.members > 1 else Part("dnn", {"epsilon": EPSILON}, parts=_plain_layers(self.layers))


class TwoStreams(nn.Module):
    """Two networks x and y, and what they say together: features (B, 2 width) -> (B,), or (B, k) of k members.

    x comes from the first half of the features, y from the second, by hidden layers of their own. The logit is
    w^T [x ; y] + b and, over heads h, the sum of x_h^T W_h y_h (FinalMLP).
    """

    def __init__(self, width: int, options: Layers, heads: int) -> None:
        super().__init__()
        check_sizes("heads", [heads])
        if not options.hidden or options.hidden[-1] % heads:
            raise ConfigError(
                f"the last of hidden must be a multiple of heads, found {options.hidden} for {heads} heads"
            )
        out = options.hidden[-1]
        self.members, self.heads, self.width = options.members, heads, width
        self.first, self.second = (nn.Sequential(*hidden_layers(width, options)) for _ in range(2))
        self.last = affine(2 * out, 1, scale=OUTPUT_SCALE)
        size = out // heads
        self.products = nn.Parameter(xavier_(torch.empty(heads, size, size), size, size, OUTPUT_SCALE))

    @property
    def bias(self) -> Tensor:
        bias: Tensor = self.last.bias  # type: ignore[assignment]
        return bias

    def forward(self, features: Tensor) -> Tensor:
        one, other = features.split(self.width, 1)
        x, y = through(self.first, one), through(self.second, other)
        # (heads, B, size) each
        p, q = (each.unflatten(1, (self.heads, -1)).transpose(0, 1) for each in (x, y))
        together = (torch.bmm(p, self.products) * q).sum(dim=(0, 2))
        logits: Tensor = self.last(torch.cat([x, y], dim=1)).squeeze(1) + together
        return logits.unflatten(0, (-1, self.members)) if self.members > 1 else logits

    def plain_part(self) -> Part | None:
        """As an interaction's."""
        if self.members > 1:
            return None
        streams = [Part("dnn", {"epsilon": EPSILON}, parts=_plain_layers(own)) for own in (self.first, self.second)]
        arrays = {"products": array(self.products)}
        return Part("two_streams", {"width": self.width}, arrays, (*streams, plain_layer(self.last)))


def _plain_layers(modules: Iterable[nn.Module]) -> tuple[Part, ...]:
    """The layers with their norms and activations; batch norm is folded into the weights before it."""
    layers: list[Part] = []
    for layer in modules:
        if isinstance(layer, nn.Linear):
            weights = {"weight": array(layer.weight).T, "bias": array(layer.bias)}
            layers.append(Part("layer", {"norm": False, "activation": ""}, weights))
        elif isinstance(layer, nn.LayerNorm):
            layers[-1].settings["norm"] = True
            layers[-1].arrays.update(gain=array(layer.weight), shift=array(layer.bias))
        elif isinstance(layer, nn.BatchNorm1d):
            _fold(layer, layers[-1].arrays)
        elif not isinstance(layer, nn.Dropout):
            layers[-1].settings["activation"] = type(layer).__name__.capitalize()
    return tuple(layers)


def _fold(norm: nn.BatchNorm1d, arrays: dict[str, NDArray[Any]]) -> None:
    """Folds batch norm, which is an affine map with its running statistics, into the layer before it."""
    gain, shift = affine_of(norm)
    arrays["weight"] = (arrays["weight"] * gain).astype(np.float32)
    arrays["bias"] = (arrays["bias"] * gain + shift).astype(np.float32)


def _norm(width: int, norm: str) -> list[nn.Module]:
    if norm == "layer":
        # The layer norm of one number is always 0, which would cut the network.
        return [nn.LayerNorm(width, eps=EPSILON)] if width > 1 else []
    return [BatchNorm(width)] if norm == "batch" else []
