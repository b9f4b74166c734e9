from __future__ import annotations

import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.optim import FTRL, OPTIMIZERS, SGD, AdaGrad, Adam, make_optimizer
from tests.optim.batches import table


def test_every_name_makes_its_optimizer() -> None:
    kinds = {name: type(make_optimizer(name, [table()])) for name in OPTIMIZERS}
    assert kinds == {"adam": Adam, "adagrad": AdaGrad, "ftrl": FTRL, "sgd": SGD}


def test_settings_arrive() -> None:
    adam = make_optimizer("adam", [table()], lr=0.1, eps=1e-4, betas=(0.5, 0.6), eps_mode="hat", sparse_mode="lazy")
    assert isinstance(adam, Adam)
    assert (adam.eps_mode, adam.sparse_mode) == ("hat", "lazy")
    settings = {
        "adam": ({}, {"lr": 0.1, "eps": 1e-4, "betas": (0.5, 0.6)}),
        "adagrad": ({"initial_accumulator": 0.7}, {"lr": 0.1, "eps": 1e-4, "initial": 0.7}),
        "ftrl": ({"l1": 1.0, "l2": 2.0, "beta": 3.0}, {"lr": 0.1, "l1": 1.0, "l2": 2.0, "beta": 3.0}),
        "sgd": ({"momentum": 0.9}, {"lr": 0.1, "momentum": 0.9}),
    }
    for name, (given, expected) in settings.items():
        made = make_optimizer(name, [table()], lr=0.1, eps=1e-4, betas=(0.5, 0.6), **given)  # type: ignore[arg-type]
        assert expected.items() <= made.param_groups[0].items()


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match="unknown optimizer 'adm'; did you mean 'adam'"):
        make_optimizer("adm", [table()])


def test_out_of_range() -> None:
    with pytest.raises(ConfigError, match="lr must be positive, found 0"):
        make_optimizer("adam", [table()], lr=0)
