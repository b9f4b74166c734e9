from __future__ import annotations

import math

import pytest
import torch

from fieldwise.config.errors import ConfigError
from fieldwise.optim import AdaGrad
from tests.optim.batches import D, N, backward, batches, dense, distance_on_dense_gradients, table


def test_against_scalars() -> None:
    weight = table()
    optimizer = AdaGrad([weight], lr=0.05, initial=0.1, eps=1e-3)
    w = weight.detach().tolist()
    total = [[0.1] * D for _ in range(N)]
    for ids, values in batches(100):
        optimizer.zero_grad()
        backward(weight, ids, values)
        optimizer.step()
        grad = dense(ids, values)[0].tolist()
        for i in set(ids.tolist()):
            for j in range(D):
                total[i][j] += grad[i][j] ** 2
                w[i][j] -= 0.05 * grad[i][j] / (math.sqrt(total[i][j]) + 1e-3)
    torch.testing.assert_close(weight.detach(), torch.tensor(w, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("initial", [0.0, 0.1])
def test_dense_gradients_are_torch_adagrad(initial: float) -> None:
    optimizer = AdaGrad([table()], 0.1, initial, eps=1e-10)
    reference = torch.optim.Adagrad([table()], 0.1, initial_accumulator_value=initial, eps=1e-10)
    assert distance_on_dense_gradients(optimizer, reference) < 1e-12


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr": -1.0}, "lr must be positive, found -1.0"),
        ({"initial": -0.1}, "initial_accumulator must not be negative, found -0.1"),
        ({"eps": 0.0}, "eps must be positive, found 0.0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        AdaGrad([table()], **settings)
