"""Adam on a large dense weight, on a GPU (Triton).

Plain version: optim.Adam.update. torch's fused kernel gives each block of threads 65,536 numbers, so that the few
million of a DNN do not fill a GPU; here every program has a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

LARGE = 2**17  # numbers from which on a kernel of its own pays
TILE = 1024


@triton.jit
def _move(weight, grad, mean, square, numbers, size, keep1, keep2, rest1, rest2, TILE: tl.constexpr):
    """m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -= rate m / (sqrt(v) + eps)."""
    k = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside, rate, eps = k < size, tl.load(numbers + 2), tl.load(numbers + 3)
    g, m, v = tl.load(grad + k, inside, 0.0), tl.load(mean + k, inside, 0.0), tl.load(square + k, inside, 0.0)
    w = tl.load(weight + k, inside, 0.0)
    m, v = keep1 * m + rest1 * g, keep2 * v + rest2 * g * g
    tl.store(mean + k, m, inside)
    tl.store(square + k, v, inside)
    tl.store(weight + k, w - rate * m / (tl.sqrt(v) + eps), inside)


def adam_dense(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, numbers: Tensor, betas: tuple[float, float]
) -> None:
    """Moves a weight, all float32 and without gaps; `numbers` are (step, lr, rate, eps) on the device."""
    size, rests = weight.numel(), (1 - betas[0], 1 - betas[1])
    _move[(triton.cdiv(size, TILE),)](weight, grad, mean, square, numbers, size, *betas, *rests, TILE=TILE)
