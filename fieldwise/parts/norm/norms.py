"""The fused layer norm over all sub-networks of an instance, batch norm, norms as plain parts, and the activations."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.graphs.plain_parts import Part
from fieldwise.parts.interactions import array

# The paper's norms have no epsilon; a row of equal units would divide by zero.
EPSILON = 1e-5

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
}


def activation(name: str) -> nn.Module:
    """The activation with this name."""
    if name not in ACTIVATIONS:
        raise ConfigError(unknown("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]()


class PairNorm(nn.Module):
    """Normalises the units of P sub-networks (section 3.3.4): (P, B, H) -> (P, B, H).

    kind `fused`: statistics over all pairs and units of an instance, and one gain and shift of length H for all
    pairs (the paper's formula); `fused-per-pair`: the same statistics, and a gain and shift for each pair; `layer`:
    statistics, gain and shift for each pair.
    """

    KINDS = ("fused", "fused-per-pair", "layer", "none")
    l2_group = None

    def __init__(self, pairs: int, width: int, kind: str = "fused", gain: float = 1.0) -> None:
        super().__init__()
        if kind not in self.KINDS:
            raise ConfigError(unknown("sub-network norm", kind, self.KINDS))
        self.alone = kind == "layer"
        own = pairs if kind in ("fused-per-pair", "layer") else 1
        self.gain = nn.Parameter(torch.full((own, 1, width), gain))
        self.shift = nn.Parameter(torch.zeros(own, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        # Instances first, so that torch's layer norm computes both kinds of statistics in one pass over memory.
        # In float32: on a CPU torch would add up the gradients of gain and shift in bfloat16, row after row.
        rows = (x.float() if x.dtype == torch.bfloat16 and not x.is_cuda else x).transpose(0, 1)
        if self.alone:
            normal = functional.layer_norm(rows, rows.shape[2:], eps=EPSILON)
            return normal.transpose(0, 1) * self.gain + self.shift
        shape = rows.shape[1:]
        gain, shift = (values.expand(shape[0], 1, shape[1]).reshape(shape) for values in (self.gain, self.shift))
        return functional.layer_norm(rows, shape, gain, shift, EPSILON).transpose(0, 1)


class BatchNorm(nn.BatchNorm1d):
    """torch's batch norm, but a batch of one row, which has no variance, uses the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 1:
            return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def affine_of(norm: nn.BatchNorm1d) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The factors and summands that batch norm is by its running statistics."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, variance, gain, shift = (
        array(value).astype(np.float64) for value in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    gain = gain / np.sqrt(variance + norm.eps)
    return gain, shift - mean * gain


NORMS = ("batch", "layer", "none")


def norm_of(kind: str, width: int) -> nn.Module:
    """The norm of a layer's units (B, width) inside of a part."""
    if kind not in NORMS:
        raise ConfigError(unknown("norm", kind, NORMS))
    if kind == "layer":
        return nn.LayerNorm(width, eps=EPSILON)
    return BatchNorm(width) if kind == "batch" else nn.Identity()


def plain_norm(norm: nn.Module) -> Part:
    """A norm of `norm_of` as a plain part, which `graphs.layers.norm` reads; batch norm by its running statistics."""
    if isinstance(norm, nn.LayerNorm):
        return Part("layer_norm", {"epsilon": norm.eps}, {"gain": array(norm.weight), "shift": array(norm.bias)})
    if isinstance(norm, nn.BatchNorm1d):
        gain, shift = (each.astype(np.float32) for each in affine_of(norm))
        return Part("batch_norm", arrays={"gain": gain, "shift": shift})
    return Part("no_norm")


def pair_norm(pairs: int, width: int, kind: str, gain: float = 1.0) -> nn.Module:
    """The norm of a micro network's layer, or nothing for `none` and for a single number: its norm is always 0."""
    single = width == 1 and (pairs == 1 or kind == "layer")
    return nn.Identity() if kind == "none" or single else PairNorm(pairs, width, kind, gain)
