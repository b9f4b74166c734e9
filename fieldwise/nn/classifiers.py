"""From features to a logit: a plain sum, or the one DNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.options import check_dropout, check_sizes
from fieldwise.loops import gpu
from fieldwise.parts.affine.formula import affine
from fieldwise.parts.norm.compiled import layer_norm_relu, takes
from fieldwise.parts.norm.formula import EPSILON, activation

NORMS = ("layer", "batch", "weight", "none")


class Sum(nn.Module):
    """The features' sum: (B, H) -> (B,)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.sum(dim=1)


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
        # Layers that a GPU's kernel for scores knows.
        self.common = options.norm == "layer" and options.activation == "relu" and min(options.hidden, default=1) > 1

    @property
    def bias(self) -> Tensor:
        bias: Tensor = self.layers[-1].bias  # type: ignore[assignment]
        return bias

    def forward(self, features: Tensor) -> Tensor:
        if self.common and gpu.scores(self, features):
            from fieldwise.parts.triton_scores import layers as scored

            affines = [part for part in self.layers if isinstance(part, nn.Linear)]
            norms = [part for part in self.layers if isinstance(part, nn.LayerNorm)]
            return scored(features, list(zip(affines[:-1], norms, strict=True)), affines[-1])
        x, fused = features, False
        layers = list(self.layers)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if fused:
                fused = False
            elif isinstance(layer, nn.LayerNorm) and takes(layer, following, x):
                x, fused = layer_norm_relu(x, layer), True
            else:
                x = layer(x)
        return x.squeeze(1)


class BatchNorm(nn.BatchNorm1d):
    """As torch's; a batch of one row, which has no variance, is normed by the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 1:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def _norm(width: int, norm: str) -> list[nn.Module]:
    if norm == "layer":
        # One number's layer norm is always 0: it would cut the network.
        return [nn.LayerNorm(width, eps=EPSILON)] if width > 1 else []
    return [BatchNorm(width)] if norm == "batch" else []
