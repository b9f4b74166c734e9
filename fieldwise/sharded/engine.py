"""TorchRec, which cuts tables: imported only where it is asked for, and named where it is missing."""

from __future__ import annotations

import importlib
import logging
import warnings
from typing import Any

from fieldwise.errors import ConfigError


def torchrec(module: str = "torchrec") -> Any:
    """A module of TorchRec, or of FBGEMM below it."""
    # What both warn of is their own: kernels of GPUs that the build for CPUs has not, and functions of torch that age.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except (ImportError, OSError) as error:
        found = str(error).strip().splitlines()[0]
        way_out = "install it with `make distributed` (docs/scale.md), or take --tables replicated"
        raise ConfigError(f"--tables sharded needs TorchRec, found: {found}; {way_out}") from None
