"""TorchRec, which cuts tables: imported only where it is asked for, and named where it is missing."""

from __future__ import annotations

import importlib
import logging
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

from fieldwise.config.errors import ConfigError


def check() -> None:
    """Refuses where TorchRec is not there, before workers are started for it."""
    for needed in ("torchrec", "fbgemm_gpu"):
        if find_spec(needed) is None:
            raise _missing(f"no module {needed}")


@cache
def torchrec(module: str = "torchrec") -> Any:
    """A module of TorchRec, or of FBGEMM below it."""
    # What both warn of is their own: kernels of GPUs that the build for CPUs has not, and functions of torch that age.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise _missing(str(error).strip().splitlines()[0]) from None


def _missing(found: str) -> ConfigError:
    way_out = "install it with `make distributed` (docs/scale.md), or take --tables replicated"
    return ConfigError(f"--tables sharded needs TorchRec, found {found}; {way_out}")
