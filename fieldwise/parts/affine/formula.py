"""Fully connected layers with Xavier weights."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.affine.compiled import ONEDNN
from fieldwise.parts.initial import xavier_
from fieldwise.parts.interactions import array
from fieldwise.parts.ways import chosen


def affine(width: int, out: int, weight_norm: bool = False, scale: float = 1.0, bias: bool = True) -> nn.Module:
    """A fully connected layer with Xavier weights, times `scale`, and zero bias, or none."""
    layer = Affine(width, out, bias)
    xavier_(layer.weight, width, out, scale)
    if bias:
        nn.init.zeros_(layer.bias)
    return nn.utils.parametrizations.weight_norm(layer) if weight_norm else layer


class Affine(nn.Linear):
    """x W^T + b: (B, width) -> (B, out). The rows of x may be padded with zeros."""

    @chosen(ONEDNN)
    def forward(self, x: Tensor) -> Tensor:
        padding = x.shape[-1] - self.in_features
        weight = functional.pad(self.weight, (0, padding)) if padding > 0 else self.weight
        return functional.linear(x, weight, self.bias)


def plain_layer(layer: nn.Module) -> Part:
    """A layer of `affine` as a plain part, which `graphs.layers.affine` reads; its weights are (width, out)."""
    assert isinstance(layer, nn.Linear)
    bias = {} if layer.bias is None else {"bias": array(layer.bias)}
    return Part("layer", arrays={"weight": array(layer.weight).T, **bias})
