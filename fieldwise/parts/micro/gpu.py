"""Micro networks by Triton's kernels (GPU): when, and what they are given; and which networks the faster ways know."""

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
    """Against the faster ways: they know two layers of one size, with the fused norm and ReLU between them."""
    norm = part.norms[0]
    if not isinstance(norm, PairNorm) or norm.alone or not isinstance(part.activation, nn.ReLU):
        return "no fused norm with ReLU"
    return "" if len(part.weights) == 2 and isinstance(part.weights[0], Plain) else "not two layers of one size"


def tile(part: Any) -> int:
    """What the kernels hold of a pair: its inputs by rows and units, its units by outputs."""
    fan_in, height = part.weights[0]().shape[1:]
    inputs, units = gpu.padded(fan_in + 1), gpu.padded(height + 1)
    if torch.is_grad_enabled():
        # On the way back each of the two or three inputs' weights is a tile by itself.
        sides = 3 if part.product else 2
        inputs = max(inputs, sides * gpu.padded(fan_in // sides))
    return inputs * (units + gpu.ROWS) + units * gpu.padded(2 * part.weights[1]().shape[2], 32)


def _by_triton(part: Any, v: Tensor) -> Tensor:
    from fieldwise.parts.micro.triton import micro

    norm, last = part.norms
    inputs = gpu.by_field(v), part.weights[0](), part.biases[0]
    outputs = part.weights[1](), part.biases[1]
    # They know a last norm that is the same for all pairs.
    own = not isinstance(last, PairNorm) or last.alone or len(last.gain) > 1
    known = (None, None) if own else (last.gain, last.shift)
    given = *inputs, norm.gain, norm.shift, *outputs, *known, part.first, part.second
    wide = part.width + (-part.width % PIECE if part.padded else 0)
    x: Tensor = micro(*given, wide, torch.is_grad_enabled())[0]
    return (last(x.transpose(0, 1)).transpose(0, 1) if own else x).flatten(1)


def _against(part: Any, v: Tensor) -> str:
    return no_triton(v) or unknown_layers(part) or no_pair_kernels(v, tile(part))


TRITON = Way("Triton", _against, _by_triton)
