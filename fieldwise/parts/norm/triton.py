"""A DNN's layers on a GPU (Triton), for scoring; in training torch's compiler fuses the same operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.loops.gpu import computed


@triton.jit
def _norm_relu(x, gain, shift, y, W: tl.constexpr, S: tl.constexpr, EPS: tl.constexpr, WIDE: tl.constexpr):
    """y = relu(gain (x - mean) / std + shift) over the first W of each row's S numbers; the others become 0."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)
    values = tl.load(x + row * S + k, k < W, 0.0).to(tl.float32)
    centred = tl.where(k < W, values - tl.sum(values, 0) * (1.0 / W), 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) * (1.0 / W) + EPS)
    scaled = centred * inverse * tl.load(gain + k, k < W, 0.0) + tl.load(shift + k, k < W, 0.0)
    tl.store(y + row * S + k, tl.maximum(scaled, 0.0).to(y.dtype.element_ty), k < S)


def layers(x: Tensor, hidden: Sequence[tuple[nn.Linear, nn.LayerNorm]], last: nn.Linear) -> Tensor:
    """Logits (B,) of a DNN of affine layers, each with layer norm and ReLU, and a last one: x (B, width).

    Rows are padded to multiples of 16 bytes: without it matrix products take three times as long.
    """
    x = _padded(computed(x))
    for affine, norm in hidden:
        x = functional.linear(x, _padded(computed(affine.weight), rows=True), _padded(computed(affine.bias)))
        y, width, stride = torch.empty_like(x), affine.out_features, x.shape[1]
        sizes = {"W": width, "S": stride, "EPS": norm.eps, "WIDE": triton.next_power_of_2(stride)}
        _norm_relu[(len(x),)](x, norm.weight, norm.bias, y, **sizes)
        x = y
    return functional.linear(x, _padded(computed(last.weight)), computed(last.bias)).squeeze(1)


def _padded(values: Tensor, rows: bool = False) -> Tensor:
    """Pads the last axis with zeros to a multiple of 8, and with `rows` the first axis too."""
    missing = -values.shape[-1] % 8, -values.shape[0] % 8 if rows else 0
    return functional.pad(values, (0, missing[0], 0, missing[1]) if values.dim() > 1 else (0, missing[0]))
