from __future__ import annotations

import math

import pytest
import torch

from fieldwise.config.errors import ConfigError
from fieldwise.optim import SGD, clip
from tests.optim.batches import backward, batches, dense, table


def weights_with_gradients() -> tuple[list[torch.nn.Parameter], list[torch.Tensor]]:
    """Two tables, a dense parameter and one without a gradient; and the same gradients, dense."""
    ids, values = next(batches(1))
    weights = [table(0), torch.nn.Parameter(torch.zeros(3).double()), table(1), table(2)]
    backward(weights[0], ids, values)
    weights[1].grad = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    backward(weights[2], ids, 2 * values)
    grads = [dense(ids, values)[0], weights[1].grad.clone(), dense(ids, 2 * values)[0]]
    return weights, grads


@pytest.mark.parametrize("max_norm", [0.5, 1e6, math.inf])
def test_clip_is_torch_on_dense_gradients(max_norm: float) -> None:
    weights, grads = weights_with_gradients()
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
    assert clip(weights, max_norm) == pytest.approx(norm, rel=1e-12)
    for weight, grad in zip(weights, grads, strict=False):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.to_dense(), grad * min(1, max_norm / norm), rtol=0, atol=1e-12)
    assert weights[3].grad is None


def test_the_optimizer_goes_on_from_clipped_gradients() -> None:
    weights, _ = weights_with_gradients()
    assert clip(weights, 0.5) > 0.5
    before = [weight.detach().clone() for weight in weights]
    SGD(weights, 1.0).step()
    moved = torch.stack([(a - b).norm() for a, b in zip(weights, before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-12)


def test_a_norm_that_is_no_number_is_reported_and_scales_nothing() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([math.nan, 1.0])
    assert math.isnan(clip([weight], 0.5))
    assert weight.grad[1] == 1.0


def test_no_gradients_and_a_bad_norm() -> None:
    assert clip([table()], 1.0) == 0.0
    with pytest.raises(ConfigError, match="max_norm must be positive, found 0"):
        clip([table()], 0)
