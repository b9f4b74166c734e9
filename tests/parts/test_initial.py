from __future__ import annotations

import math

import pytest
import torch

from fieldwise.config.errors import ConfigError
from fieldwise.parts.initial import EMBEDDING, embedding_, xavier_

N, FIELDS, DIM = 2000, 5, 8


def filled(init: str, scale: float = 1.0) -> torch.Tensor:
    torch.manual_seed(0)
    weight = torch.empty(N, DIM)
    embedding_(weight, FIELDS, N, DIM, init, scale)
    return weight


@pytest.mark.parametrize(
    ("init", "scale", "limit"),
    [
        ("uniform-nk", 1.0, math.sqrt(1 / (FIELDS * DIM))),
        ("uniform-nk", 6.0, math.sqrt(6 / (FIELDS * DIM))),
        ("uniform-Nk", 3.0, math.sqrt(3 / (N * DIM))),
        ("uniform-k", 3.0, math.sqrt(3 / DIM)),
        ("xavier", 1.0, math.sqrt(6 / (N + DIM))),
    ],
)
def test_a_symmetric_uniform_fills_its_range(init: str, scale: float, limit: float) -> None:
    weight = filled(init, scale) / limit
    assert weight.abs().max() <= 1
    assert weight.max() > 0.999
    assert weight.min() < -0.999
    assert weight.var().item() == pytest.approx(1 / 3, rel=0.03)


def test_libffm_starts_without_negative_numbers() -> None:
    weight = filled("libffm", 2.0) * math.sqrt(DIM)
    assert weight.min() >= 0
    assert weight.max() == pytest.approx(2, rel=1e-3)
    assert weight.mean().item() == pytest.approx(1, rel=0.03)


def test_normal_has_its_deviation() -> None:
    weight = filled("normal", 0.01)
    assert weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert weight.mean().item() == pytest.approx(0, abs=0.001)


def test_every_start_is_finite_and_follows_the_seed() -> None:
    for init in EMBEDDING:
        assert filled(init).isfinite().all()
        assert torch.equal(filled(init), filled(init))


def test_an_unknown_start_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown embedding start 'normall'; did you mean 'normal'"):
        filled("normall")


def test_xavier_follows_the_fans_and_not_the_shape() -> None:
    weight = xavier_(torch.empty(50, 30, 40), 10, 14)
    assert weight.abs().max() <= 0.5
    assert weight.abs().max() > 0.499
