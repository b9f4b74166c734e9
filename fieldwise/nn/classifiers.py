"""From features to a logit: a plain sum, or the one DNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.formula import affine
from fieldwise.parts.initial import OUTPUT_SCALE
from fieldwise.parts.interactions import array
from fieldwise.parts.norm.formula import activated
from fieldwise.parts.norm.norms import EPSILON, activation
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
    """The DNN's hidden layers: widths, norm before the activation, and the probability of dropping a unit."""

    hidden: Sequence[int] = (400, 400)
    norm: str = "layer"
    activation: str = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ConfigError(unknown("norm", self.norm, NORMS))
        check_sizes("hidden", self.hidden)
        check_dropout(self.dropout)


def _no_kernels(part: DNN, features: Tensor) -> str:
    return no_score_kernels(part, features) if part.common else "not layer norm with ReLU"


def _by_triton(part: DNN, features: Tensor) -> Tensor:
    from fieldwise.parts.norm.triton import layers

    affines = [layer for layer in part.layers if isinstance(layer, nn.Linear)]
    norms = [layer for layer in part.layers if isinstance(layer, nn.LayerNorm)]
    return layers(features, list(zip(affines[:-1], norms, strict=True)), affines[-1])


TRITON = Way("Triton, for scores", _no_kernels, _by_triton)


class DNN(nn.Module):
    """Fully connected layers and one output: (B, width) -> (B,).

    Each hidden layer is affine, norm, activation, dropout; the last is affine alone.
    """

    def __init__(self, width: int, options: Layers) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for out in options.hidden:
            layers += [affine(width, out, weight_norm=options.norm == "weight"), *_norm(out, options.norm)]
            layers.append(activation(options.activation))
            if options.dropout:
                layers.append(nn.Dropout(options.dropout))
            width = out
        self.layers = nn.Sequential(*layers, affine(width, 1, scale=OUTPUT_SCALE))
        # Layers that the GPU's kernel for scores knows.
        self.common = options.norm == "layer" and options.activation == "relu" and min(options.hidden, default=1) > 1

    @property
    def bias(self) -> Tensor:
        bias: Tensor = self.layers[-1].bias  # type: ignore[assignment]
        return bias

    @chosen(TRITON)
    def forward(self, features: Tensor) -> Tensor:
        x, layers = features, iter(self.layers)
        for layer in layers:
            x = activated(x, layer, next(layers)) if isinstance(layer, nn.LayerNorm) else layer(x)
        return x.squeeze(1)

    def plain_part(self) -> Part | None:
        """As an interaction's; batch norm and weight norm are folded into the layers' weights."""
        layers: list[Part] = []
        for layer in self.layers:
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
        return Part("dnn", {"epsilon": EPSILON}, parts=tuple(layers))


def _fold(norm: nn.BatchNorm1d, arrays: dict[str, NDArray[Any]]) -> None:
    """Folds batch norm, which is an affine map with its running statistics, into the layer before it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, variance, gain, shift = (
        array(value).astype(np.float64) for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    gain = gain / np.sqrt(variance + norm.eps)
    arrays["weight"] = (arrays["weight"] * gain).astype(np.float32)
    arrays["bias"] = ((arrays["bias"] - mean) * gain + shift).astype(np.float32)


class BatchNorm(nn.BatchNorm1d):
    """torch's batch norm, but a batch of one row, which has no variance, uses the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 1:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def _norm(width: int, norm: str) -> list[nn.Module]:
    if norm == "layer":
        # The layer norm of one number is always 0, which would cut the network.
        return [nn.LayerNorm(width, eps=EPSILON)] if width > 1 else []
    return [BatchNorm(width)] if norm == "batch" else []
