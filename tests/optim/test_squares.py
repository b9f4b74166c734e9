"""The sum of squares equals the plain one, gradients too."""

from __future__ import annotations

import pytest
import torch

from fieldwise.optim.squares import square_sum


@pytest.mark.parametrize("shape", [(), (7,), (5, 3, 4)])
def test_equals_squares_summed(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for part in (x, x.transpose(0, -1) if shape else x):
        fast, plain = 3 * square_sum(part), 3 * part.square().sum()
        torch.testing.assert_close(fast, plain, rtol=1e-12, atol=0)
        grads = [torch.autograd.grad(found, x)[0] for found in (fast, plain)]
        torch.testing.assert_close(*grads, rtol=1e-12, atol=0)
