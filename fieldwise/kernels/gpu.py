"""Whether the Triton kernels can be used, so that nothing else needs to import Triton."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

from torch import Tensor


@cache
def triton_is_there() -> bool:
    """Whether Triton can be imported and is not switched off (FIELDWISE_TRITON=0)."""
    return os.environ.get("FIELDWISE_TRITON") != "0" and importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's kernels run on the CPU, step by step, as tests do where there is no GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def takes(*tensors: Tensor) -> bool:
    """Whether a Triton kernel can take these tensors."""
    return triton_is_there() and all((tensor.is_cuda or interpreted()) and tensor.is_contiguous() for tensor in tensors)
