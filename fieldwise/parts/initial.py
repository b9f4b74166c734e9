"""The starting values that the paper compares (section 4.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fieldwise.config.errors import ConfigError, unknown

EMBEDDING = ("uniform-nk", "uniform-Nk", "uniform-k", "xavier", "normal", "libffm")


def embedding_(weight: Tensor, fields: int, rows: int, dim: int, init: str = "uniform-nk", scale: float = 1.0) -> None:
    """Fills a table of a model with n = `fields` fields, N = `rows` categories and vectors of size k = `dim`.

    `uniform-nk`, `uniform-Nk`, `uniform-k`: U(+-sqrt(scale/nk)) and so on; `xavier`: U(+-sqrt(6/(N+k)));
    `normal`: N(0, scale^2); `libffm`: U(0, scale/sqrt(k)), never negative.
    """
    if init not in EMBEDDING:
        raise ConfigError(unknown("embedding start", init, EMBEDDING))
    spread = {
        "uniform-nk": math.sqrt(scale / (fields * dim)),
        "uniform-Nk": math.sqrt(scale / (rows * dim)),
        "uniform-k": math.sqrt(scale / dim),
        "xavier": math.sqrt(6 / (rows + dim)),
    }
    with torch.no_grad():
        if init == "normal":
            weight.normal_(0.0, scale)
        elif init == "libffm":
            weight.uniform_(0.0, scale / math.sqrt(dim))
        else:
            weight.uniform_(-spread[init], spread[init])


def xavier_(weight: Tensor, fan_in: int, fan_out: int) -> Tensor:
    """U(+-sqrt(6/(fan_in+fan_out))), for weights whose shape does not show the fans."""
    limit = math.sqrt(6 / (fan_in + fan_out))
    return nn.init.uniform_(weight, -limit, limit)
