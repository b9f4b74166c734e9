"""Networks learn from the first step: warm-up, and starts near the base rate (docs/lab/2026-11-start.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fieldwise.config.settings import TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.optim import Adam, learning_rate
from fieldwise.train.loop import warmup

FIELDS, ROWS = 16, 6000


def network(name: str, **options: Any) -> Model:
    torch.manual_seed(0)
    model = build(name, Layout.of([20] * FIELDS), {"dim": 8, **options})
    assert isinstance(model, Model)
    return model


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of uneven frequency, and labels that a weight for each id decides."""
    rng = np.random.default_rng(0)
    ids = (rng.zipf(1.5, (ROWS, FIELDS)) % 20).astype(np.int32)
    logits = 0.5 * rng.normal(size=(FIELDS, 20))[np.arange(FIELDS), ids].sum(axis=1)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(logits.mean() - logits))
    return torch.from_numpy(ids), torch.from_numpy(labels.astype(np.float32))


def spread(model: Model, lr: float, warm: int, steps: int = 60) -> float:
    """The logits' standard deviation after some steps of Adam."""
    ids, labels = rows()
    optimizer = Adam(model.parameters(), lr=lr)
    for step in range(steps):
        batch = slice(100 * step, 100 * step + 100)
        optimizer.param_groups[0]["lr"] = learning_rate(lr, step, steps, warmup=warm)
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids[batch]), labels[batch]).backward()
        optimizer.step()
    return float(model(ids[:1000]).detach().std())


def test_a_wide_pin_learns_at_a_high_rate_with_the_default_warmup_and_answers_a_constant_without() -> None:
    shape = {"hidden": (400,) * 4, "subnet": (20, 5), "dropout": 0.0}
    warm = warmup(TrainSettings(lr=1e-2), steps=1000, deep=True)
    assert spread(network("pin", **shape), 1e-2, warm) > 0.3
    assert spread(network("pin", **shape), 1e-2, 0) < 0.01


@pytest.mark.parametrize(
    ("settings", "steps", "deep", "expected"),
    [
        ({}, 1000, True, 100),
        ({"lr": 1e-2}, 2000, True, 500),
        ({}, 60, True, 30),
        ({}, 1, True, 0),
        ({}, 1000, False, 0),
        ({"warmup": 7}, 1000, False, 7),
        ({"warmup": 0}, 1000, True, 0),
        ({"optimizer": "ftrl"}, 1000, True, 0),
        ({"continue_from": "run"}, 1000, True, 0),
    ],
)
def test_the_warmup_that_is_left_open(settings: dict[str, Any], steps: int, deep: bool, expected: int) -> None:
    assert warmup(TrainSettings(**settings), steps, deep) == expected


@pytest.mark.parametrize("name", ["fnn", "ccpm", "ipnn", "kpnn", "pin", "nifm"])
@pytest.mark.parametrize("start", [0.01, 0.3])
def test_first_logits_are_near_the_base_rate(name: str, start: float) -> None:
    model = network(name)
    model.embedding.tables[0].start("normal", start)
    if model.linear is not None:
        model.linear.weights.start("normal", 0.01)
    assert float(model(rows()[0]).detach().std()) < 0.25
