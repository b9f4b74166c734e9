"""Kernel products by Triton's kernels (GPU): when they apply, and their inputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fieldwise.loops import gpu
from fieldwise.parts.ways import Way, no_pair_kernels, no_triton
from fieldwise.parts.weights import Plain


def _against(part: Any, v: Tensor) -> str:
    if part.kind != "mat" or not isinstance(part.kernel, Plain):
        return "the kernels are not matrices of one size"
    return no_triton(v) or no_pair_kernels(v, tile(part))


def tile(part: Any) -> int:
    """How many numbers a pair's kernel and a tile of rows have."""
    wide = gpu.padded(part.kernel().shape[2])
    return wide * (wide + gpu.ROWS)


def _by_triton(part: Any, v: Tensor) -> Tensor:
    from fieldwise.parts.kernel.triton import kernel_products

    products: Tensor = kernel_products(gpu.by_field(v), gpu.computed(part.kernel()), part.first, part.second)
    return products.T


TRITON = Way("Triton", _against, _by_triton)
