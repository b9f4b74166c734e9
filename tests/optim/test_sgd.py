from __future__ import annotations

import pytest
import torch

from fieldwise.config.errors import ConfigError
from fieldwise.optim import SGD
from tests.optim.batches import N, backward, batches, dense, distance_on_dense_gradients, table


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_against_the_dense_reference(momentum: float) -> None:
    """The buffer of every row decays in every step, the update is masked."""
    weight = table()
    optimizer = SGD([weight], 0.05, momentum)
    expected, buffer = weight.detach().clone(), torch.zeros_like(weight)
    for ids, values in batches(200):
        optimizer.zero_grad()
        backward(weight, ids, values)
        optimizer.step()
        grad, mask = dense(ids, values)
        buffer = momentum * buffer + grad
        expected -= 0.05 * buffer * mask
    assert (weight - expected).abs().max() < 1e-12
    assert torch.equal(weight[N - 2 :], table()[N - 2 :])
    assert set(optimizer.state[weight]) == ({"momentum", "last"} if momentum else set())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_dense_gradients_are_torch_sgd(momentum: float) -> None:
    optimizer, reference = SGD([table()], 0.1, momentum), torch.optim.SGD([table()], 0.1, momentum)
    assert distance_on_dense_gradients(optimizer, reference) < 1e-12


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr": 0.0}, "lr must be positive, found 0.0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), found 1.0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        SGD([table()], **settings)
