"""TorchRec, which cuts tables: imported only where it is used, with an error that says how to install it."""

from __future__ import annotations

import importlib
import logging
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

from fieldwise.config.errors import ConfigError


def check() -> None:
    """Raises where TorchRec is not installed, before any worker is started."""
    for needed in ("torchrec", "fbgemm_gpu"):
        if find_spec(needed) is None:
            raise _missing(f"no module {needed}")


@cache
def torchrec(module: str = "torchrec") -> Any:
    """A module of TorchRec, or of FBGEMM below it."""
    # Both warn of their own affairs: GPU kernels that the CPU build lacks, and deprecated functions of torch.
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
