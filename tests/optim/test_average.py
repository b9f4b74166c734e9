from __future__ import annotations

import pytest
import torch
from torch import nn

from fieldwise.config.errors import ConfigError
from fieldwise.optim import Average, averaged
from fieldwise.optim.average import UPDATES_PER_EPOCH


def walk(model: nn.Module, average: Average, steps: int) -> list[torch.Tensor]:
    """Random steps, followed; the weights after each, in float64."""
    seen = []
    with torch.no_grad():
        for step in range(1, steps + 1):
            model.weight.add_(torch.randn_like(model.weight))
            average.follow(step)
            seen.append(model.weight.double().clone())
    return seen


def slow(seen: list[torch.Tensor], horizon: float) -> torch.Tensor:
    """The average as a weighted sum of all that was seen."""
    shares: list[float] = []
    for number in range(1, len(seen) + 1):
        share = max(1 / number, 1 / horizon)
        shares = [old * (1 - share) for old in shares] + [share]
    assert sum(shares) == pytest.approx(1)
    return sum(share * weights for share, weights in zip(shares, seen, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("epochs", [0.5, 2.0, 100.0])
def test_each_step_counts_where_steps_are_few(epochs: float) -> None:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    average = Average(averaged(model), epochs, steps_per_epoch=8)
    seen = walk(model, average, 30)
    assert torch.allclose(average.values["weight"].double(), slow(seen, 8 * epochs), atol=1e-5)


def test_where_steps_are_many_only_some_count() -> None:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    average = Average(averaged(model), 0.2, steps_per_epoch=5 * UPDATES_PER_EPOCH)
    seen = walk(model, average, 303)
    assert torch.allclose(average.values["weight"].double(), slow(seen[4::5], 0.2 * UPDATES_PER_EPOCH), atol=1e-5)


def test_the_model_has_its_own_weights_again_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = Average(averaged(model), 1.0, 10)
    model(torch.randn(16, 3))
    with torch.no_grad():
        model[0].weight.mul_(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = {name: value.clone() for name, value in average.values.items()}

    def evaluate_and_fail() -> None:
        with average.in_place():
            assert all(model.state_dict()[name].equal(value) for name, value in kept.items())
            assert not model[0].weight.equal(before["0.weight"])
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError, match="in between"):
        evaluate_and_fail()
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(average.values[name].equal(value) for name, value in kept.items())
    assert {"1.running_mean", "1.running_var"} <= set(kept)


def test_no_epochs_no_average() -> None:
    with pytest.raises(ConfigError, match="positive"):
        Average(averaged(nn.Linear(1, 1)), 0.0, 10)
