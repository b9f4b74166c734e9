"""Whether the Triton kernels can be used, so that nothing else needs to import Triton."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor, nn

# FIELDWISE_TRITON=0 switches the kernels off. With TRITON_INTERPRET=1 they run on the CPU, step by step, for tests.
HAS_TRITON = os.environ.get("FIELDWISE_TRITON") != "0" and importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def takes(*tensors: Tensor) -> bool:
    """Whether a Triton kernel can take these tensors: float32 on a GPU, without gaps."""
    return HAS_TRITON and all(
        (tensor.is_cuda or INTERPRETED) and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in tensors
    )


def fuses(v: Tensor) -> bool:
    """Whether the kernels over pairs are for these vectors: their products are bfloat16's, by autocast, or no gradient
    is asked for. With gradients in float32 they are right too, but torch's own are faster."""
    if not takes(v) or v.numel() >= 2**31:  # their addresses have 32 bits
        return False
    return torch.is_autocast_enabled(v.device.type) or INTERPRETED or not torch.is_grad_enabled()


def scores(part: nn.Module, values: Tensor) -> bool:
    """Whether the kernels for scores alone are for this part: on a GPU, not in training, no gradient asked for."""
    fast = HAS_TRITON and (values.is_cuda or INTERPRETED) and not torch.compiler.is_compiling()
    known = values.dtype in (torch.float32, torch.bfloat16) and values.is_contiguous()
    return fast and known and not part.training and not torch.is_grad_enabled()


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of matrix products here: bfloat16 under autocast, and else its own."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
