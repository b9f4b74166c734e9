"""From features to a logit: a plain sum, or the one DNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fieldwise.errors import ConfigError, unknown
from fieldwise.nn.initial import xavier_
from fieldwise.nn.norms import EPSILON, activation

NORMS = ("layer", "batch", "weight", "none")


class Sum(nn.Module):
    """The features' sum: (B, H) -> (B,)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.sum(dim=1)


@dataclass(frozen=True)
class Layers:
    """The DNN's hidden layers: widths, norm before the activation, and the probability of dropping a unit."""

    hidden: Sequence[int] = (400, 400, 400)
    norm: str = "layer"
    activation: str = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ConfigError(unknown("norm", self.norm, NORMS))
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is the probability of dropping, in [0, 1), found {self.dropout}")


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
        self.layers = nn.Sequential(*layers, affine(width, 1))

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features)
        return logits.squeeze(1)


def affine(width: int, out: int, weight_norm: bool = False) -> nn.Module:
    """A fully connected layer with Xavier weights and zero bias."""
    layer = nn.Linear(width, out)
    xavier_(layer.weight, width, out)
    nn.init.zeros_(layer.bias)
    return nn.utils.parametrizations.weight_norm(layer) if weight_norm else layer


def _norm(width: int, norm: str) -> list[nn.Module]:
    if norm == "layer":
        return [nn.LayerNorm(width, eps=EPSILON)]
    return [nn.BatchNorm1d(width)] if norm == "batch" else []
