"""Whether the Triton kernels can be used, so that nothing else needs to import Triton."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

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
    """Whether the kernels over pairs are for these vectors: their products are bfloat16's, by autocast. In float32 they
    are right too, but torch's own are faster."""
    return takes(v) and (torch.is_autocast_enabled(v.device.type) or INTERPRETED)


def computed(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of matrix products here: bfloat16 under autocast, and else its own."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
