"""Micro networks by Triton's kernels (GPU): when they apply, and their inputs; and which layers the fast ways take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.loops import gpu
from fieldwise.parts.norm.norms import PairNorm
from fieldwise.parts.ways import Way, no_pair_kernels, no_triton
from fieldwise.parts.weights import Plain

PIECE = 8  # numbers of bfloat16 in 16 bytes


def unknown_layers(part: Any) -> str:
    """Whether the faster ways take these layers: two, with the fused norm and ReLU between them."""
    norm = part.norms[0]
    if not isinstance(norm, PairNorm) or norm.alone or not isinstance(part.activation, nn.ReLU):
        return "no fused norm with ReLU"
    return "" if len(part.weights) == 2 else "not two layers"


def tile(part: Any) -> int:
    """How many numbers of a pair the kernels hold: its inputs by rows and units, its units by outputs."""
    fan_in, height = part.weights[0]().shape[1:]
    inputs, units = gpu.padded(fan_in + 1), gpu.padded(height + 1)
    if torch.is_grad_enabled():
        # In the backward pass the weights of each of the two or three inputs are a tile.
        sides = 3 if part.product else 2
        inputs = max(inputs, sides * gpu.padded(fan_in // sides))
    return inputs * (units + gpu.ROWS) + units * gpu.padded(2 * part.weights[1]().shape[2], 32)


def _by_triton(part: Any, v: Tensor) -> Tensor:
    from fieldwise.parts.micro.triton import micro

    norm, last = part.norms
    inputs = gpu.by_field(v), part.weights[0](), part.biases[0]
    outputs = part.weights[1](), part.biases[1]
    # The kernels take a last norm whose gain is the same for all pairs.
    own = not isinstance(last, PairNorm) or last.alone or len(last.gain) > 1
    known = (None, None) if own else (last.gain, last.shift)
    given = *inputs, norm.gain, norm.shift, *outputs, *known, part.first, part.second
    wide = part.width + (-part.width % PIECE if part.padded else 0)
    x: Tensor = micro(*given, wide, torch.is_grad_enabled())[0]
    return (last(x.transpose(0, 1)).transpose(0, 1) if own else x).flatten(1)


def _against(part: Any, v: Tensor) -> str:
    if not isinstance(part.weights[0], Plain):
        return "vectors of several sizes"
    return no_triton(v) or unknown_layers(part) or no_pair_kernels(v, tile(part))


TRITON = Way("Triton", _against, _by_triton)
