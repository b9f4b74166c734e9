"""Whether the Triton kernels can be used, so that nothing else needs to import Triton."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn

# FIELDWISE_TRITON=0 switches the kernels off. With TRITON_INTERPRET=1 they run on the CPU, step by step, for tests.
HAS_TRITON = os.environ.get("FIELDWISE_TRITON") != "0" and importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ROWS = 64  # of a tile of rows


def takes(*tensors: Tensor) -> bool:
    """Whether a Triton kernel can take these tensors: float32 on a GPU, without gaps."""
    return HAS_TRITON and all(
        (tensor.is_cuda or INTERPRETED) and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in tensors
    )


def fuses(v: Tensor, tile: int) -> bool:
    """Whether the kernels over pairs are for these vectors: their products are bfloat16's, by autocast, or no gradient
    is asked for. With gradients in float32 they are right too, but torch's own are faster. `tile`: the numbers of a
    pair's matrices and of the rows before them, which must lie in a processor's own memory, twice."""
    if not takes(v) or v.numel() >= 2**31:  # their addresses have 32 bits
        return False
    if INTERPRETED:
        return True
    rounded = torch.is_autocast_enabled(v.device.type)
    return (rounded or not torch.is_grad_enabled()) and 2 * tile * (2 if rounded else 4) <= _room()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _room() -> int:
    """Bytes of memory that a program on this GPU may have for itself."""
    properties: Any = torch.cuda.get_device_properties()
    return int(properties.shared_memory_per_block_optin)


def padded(size: int, least: int = 16) -> int:
    """A side of a tile: the next power of two."""
    return max(least, 1 << (size - 1).bit_length())


def scores(part: nn.Module, values: Tensor) -> bool:
    """Whether the kernels for scores alone are for this part: on a GPU, not in training, no gradient asked for."""
    fast = HAS_TRITON and (values.is_cuda or INTERPRETED) and not torch.compiler.is_compiling()
    known = values.dtype in (torch.float32, torch.bfloat16) and values.is_contiguous()
    return fast and known and not part.training and not torch.is_grad_enabled()


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of matrix products here: bfloat16 under autocast, and else its own."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
