from __future__ import annotations

import math

import pytest
import torch

from fieldwise.config.errors import ConfigError
from fieldwise.optim import FTRL
from tests.optim.batches import D, N, backward, batches, dense, table


class Coordinate:
    """One coordinate of McMahan et al. 2013, algorithm 1, as it is printed there."""

    def __init__(self, alpha: float, beta: float, l1: float, l2: float) -> None:
        self.alpha, self.beta, self.l1, self.l2 = alpha, beta, l1, l2
        self.z = self.n = 0.0

    def start(self, w: float) -> None:
        """The z that gives w while n is 0."""
        self.z = -math.copysign(self.l1, w) - w * (self.beta / self.alpha + self.l2) if w else 0.0

    def weight(self) -> float:
        if abs(self.z) <= self.l1:
            return 0.0
        sign = math.copysign(1.0, self.z)
        return -(self.z - sign * self.l1) / ((self.beta + math.sqrt(self.n)) / self.alpha + self.l2)

    def learn(self, g: float) -> None:
        sigma = (math.sqrt(self.n + g * g) - math.sqrt(self.n)) / self.alpha
        self.z += g - sigma * self.weight()
        self.n += g * g


@pytest.mark.parametrize("zero", [True, False], ids=["from zero", "from the given weights"])
@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize(
    ("alpha", "beta", "l1", "l2"), [(0.1, 1.0, 0.0, 0.0), (0.1, 1.0, 1.5, 0.3), (0.5, 0.2, 3.0, 0)]
)
def test_against_scalars(zero: bool, form: str, alpha: float, beta: float, l1: float, l2: float) -> None:
    weight = table()
    if zero:
        torch.nn.init.zeros_(weight)
    optimizer = FTRL([weight], alpha, beta, l1, l2)
    cells = [[Coordinate(alpha, beta, l1, l2) for _ in range(D)] for _ in range(N)]
    for i in range(N):
        for j in range(D):
            cells[i][j].start(weight[i, j].item())
    for ids, values in batches(100):
        grad, _ = dense(ids, values)
        optimizer.zero_grad()
        if form == "sparse":
            backward(weight, ids, values)
        else:
            weight.grad = grad
        optimizer.step()
        for i in set(ids.tolist()):
            for j in range(D):
                cells[i][j].learn(grad[i, j].item())
    expected = torch.tensor([[cell.weight() for cell in row] for row in cells], dtype=torch.float64)
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-12)
    assert torch.equal(weight[N - 2 :], (torch.zeros_like(weight) if zero else table())[N - 2 :])
    if l1 == 3.0:
        assert (weight[: N - 2] == 0).any()


def test_a_coordinate_without_a_gradient_keeps_its_weight_to_the_last_bit() -> None:
    weight = table(dtype=torch.float32)
    optimizer = FTRL([weight], 0.1, l1=1e3, l2=1.0)
    for _ in range(10):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert torch.equal(weight, table(dtype=torch.float32))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"alpha": 0.0}, r"lr \(alpha\) must be positive, found 0.0"),
        ({"beta": 0.0}, "beta must be positive, found 0.0"),
        ({"l1": -1.0}, "l1 must not be negative, found -1.0"),
        ({"l2": math.inf}, "l2 must not be negative, found inf"),
    ],
)
def test_settings_out_of_range(settings: dict[str, float], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        FTRL([table()], **settings)
