"""An optimiser by its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fieldwise.config.errors import ConfigError, unknown
from fieldwise.config.settings import NEWTON
from fieldwise.optim.adagrad import AdaGrad
from fieldwise.optim.adam import Adam
from fieldwise.optim.ftrl import FTRL
from fieldwise.optim.rows import RowOptimizer
from fieldwise.optim.sgd import SGD

OPTIMIZERS = ("adam", "adagrad", "ftrl", "sgd")


def make_optimizer(
    name: str,
    params: Iterable[Any],
    *,
    lr: float = 1e-3,
    eps: float = 1e-8,
    betas: tuple[float, float] = (0.9, 0.999),
    eps_mode: str = "textbook",
    sparse_mode: str = "paper",
    momentum: float = 0.0,
    initial_accumulator: float = 0.1,
    l1: float = 0.0,
    l2: float = 0.0,
    beta: float = 1.0,
) -> RowOptimizer:
    """The optimiser `name` with the settings that it has; lr is FTRL's alpha.

    >>> import torch
    >>> make_optimizer("ftrl", [torch.zeros(3, 1)], lr=0.1, l1=1.0).param_groups[0]["l1"]
    1.0
    """
    if name == "adam":
        return Adam(params, lr, betas, eps, eps_mode, sparse_mode)
    if name == "adagrad":
        return AdaGrad(params, lr, initial_accumulator, eps)
    if name == "ftrl":
        return FTRL(params, lr, beta, l1, l2)
    if name == "sgd":
        return SGD(params, lr, momentum)
    raise ConfigError(unknown("optimizer", name, (*OPTIMIZERS, NEWTON)))
