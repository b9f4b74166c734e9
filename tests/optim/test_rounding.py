"""Weights in bfloat16: rounded without a bias, so that updates too small to be seen one by one add up."""

from __future__ import annotations

import pytest
import torch

from fieldwise.optim import OPTIMIZERS, Average, clip, make_optimizer
from fieldwise.optim.rounding import rounded
from tests.optim.batches import N, backward, batches, table


def test_a_number_becomes_one_of_its_neighbours_and_stays_itself_on_average() -> None:
    torch.manual_seed(0)
    values = torch.randn(200) * 10.0 ** torch.randint(-30, 30, (200,))
    values[:4] = torch.tensor([0.0, -0.0, 1.5, -3.0])  # of which bfloat16 has each
    found = torch.stack([rounded(values).float() for _ in range(3000)])
    assert all(found[:, place].eq(values[place]).all() for place in range(4))
    low, high = found.abs().amin(0), found.abs().amax(0)
    assert ((low <= values.abs()) & (values.abs() <= high)).all()
    assert (high - low <= values.abs() / 2**7).all()
    error = (found.double().mean(0) - values.double()) / values.double().abs().clamp(min=1e-38)
    assert error.abs().max() < 4 * 2**-7 / 2 / 3000**0.5


def test_what_is_not_finite_stays_so() -> None:
    found = rounded(torch.tensor([torch.inf, -torch.inf, torch.nan]))
    assert found[:2].tolist() == [torch.inf, -torch.inf]
    assert found[2].isnan()


def narrow_table() -> torch.nn.Parameter:
    weight = torch.nn.Parameter(table().detach().bfloat16())
    weight.grad_dtype = torch.float32
    return weight


def step(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter, ids: torch.Tensor, values: torch.Tensor) -> None:
    """A step whose sparse gradient is float32 whatever the weights are, as a lookup in a cut table leaves it."""
    like = table(dtype=torch.float32)
    backward(like, ids, values)
    weight.grad = like.grad
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["paper", "lazy", "dense"])
def test_a_narrow_table_follows_a_float32_one(name: str, mode: str) -> None:
    """Its states are float32; its weights are those of float32, but for errors of rounding that do not add up."""
    torch.manual_seed(0)
    narrow = narrow_table()
    plain = torch.nn.Parameter(narrow.detach().float())
    weights = narrow, plain
    optimizers = [make_optimizer(name, [weight], lr=0.01, sparse_mode=mode, momentum=0.9) for weight in weights]
    for ids, values in batches(60):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            step(optimizer, weight, ids, values)
    states = [optimizer.state[weight] for weight, optimizer in zip(weights, optimizers, strict=True)]
    assert narrow.dtype == torch.bfloat16
    for key, state in states[0].items():
        assert state.dtype == (torch.int32 if key == "last" else torch.float32)
        if name != "ftrl":  # whose states follow the weights
            torch.testing.assert_close(state, states[1][key], msg=key)
    assert (narrow.float() - plain).abs().max() < 0.1
    assert (narrow.float() - plain).mean().abs() < 0.005


def test_small_updates_add_up() -> None:
    """A thousand steps of a tenth of the least change that a weight of 1 can show: they come to 0.39."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(1000, 1, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    optimizer = make_optimizer("sgd", [weight], lr=2.0**-8 / 10, momentum=0.0)
    nearest = torch.ones(1).bfloat16()
    weight.grad = torch.ones(1000, 1).to_sparse(1)
    for _ in range(1000):
        optimizer.step()
        nearest = (nearest.float() - 2.0**-8 / 10).bfloat16()
    assert nearest.item() == 1.0
    assert weight.float().mean().item() == pytest.approx(1 - 1000 * 2.0**-8 / 10, abs=0.003)


def test_an_average_of_narrow_weights_is_float32_and_outlives_an_evaluation() -> None:
    torch.manual_seed(0)
    weight = torch.randn(N, 2).bfloat16()
    average = Average({"weight": weight}, 10.0, 10)
    seen = []
    for number in range(1, 9):
        weight.copy_(torch.randn(N, 2))
        average.follow(number)
        seen.append(weight.float())
    expected = torch.stack(seen).mean(0)
    torch.testing.assert_close(average.values["weight"], expected)
    own, kept = weight.clone(), average.values["weight"].clone()
    with average.in_place():
        assert weight.equal(kept.bfloat16())
    assert weight.equal(own)
    assert average.values["weight"].equal(kept)


def test_clipping_takes_the_rows_of_all_workers_for_one_gradient() -> None:
    """Three workers with some rows each scale as one process with all does."""
    (ids, values), *_ = batches(1)
    whole, dense = table(), torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    parts = [torch.nn.Parameter(whole.detach()[start : start + 10]) for start in (0, 10, 20)]
    backward(whole, ids, values)
    dense.grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    expected = clip([whole, dense], 0.5)

    def set_gradients() -> None:
        for number, part in enumerate(parts):
            here = (ids >= 10 * number) & (ids < 10 * number + 10)
            part.grad = None
            backward(part, ids[here] - 10 * number, values[here])

    set_gradients()
    squares = sum(part.grad.coalesce()._values().square().sum() for part in parts)
    for part in parts:
        dense.grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
        assert clip([dense], 0.5, [part], lambda own: squares) == pytest.approx(expected, rel=1e-12)
    assert whole.grad is not None
    found = torch.cat([part.grad.to_dense() for part in parts])
    torch.testing.assert_close(found, whole.grad.to_dense(), rtol=1e-12, atol=0)
