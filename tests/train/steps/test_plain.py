"""The step whose rows are clipped, against one that is written out; and two rates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import Batch
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train.steps import CapturedStep, ShallowStep, Step, make_step, tables
from tests.optim.test_row_clip import slow

NARROW = Layout.of([5, 7, 3])
# A set of up to three members beside them.
WIDE = Layout((5, 7, 6), (1, 1, 3))
OPTIONS: dict[str, dict[str, Any]] = {
    "fm": {"dim": 4},
    "fnn": {"dim": 3, "hidden": (6,), "dropout": 0.0, "adaptive": 1.5},  # tables of several sizes
    "deepfm": {"dim": 3, "hidden": (6,), "dropout": 0.0},
}


def batch(layout: Layout, number: int, count: int = 23) -> Batch:
    random = np.random.default_rng(number)
    sizes = [size for size, width in zip(layout.sizes, layout.widths, strict=True) for _ in range(width)]
    ids = (random.random((count, len(sizes))) ** 2 * sizes).astype(np.int32)
    if layout is WIDE:
        used = random.integers(1, 4, count)
        ids[used < 2, 3] = ids[used < 3, 4] = -1
    weights = random.random(count) if number % 2 else None
    return Batch(ids, (random.random(count) < 0.3).astype(np.float64), weights)


def network(name: str, layout: Layout) -> Model:
    torch.manual_seed(0)
    model = build(name, layout, OPTIONS[name])
    assert isinstance(model, Model)
    model = model.double().train()
    for table in tables(model):
        table.start("normal", 0.3)
    return model


def places(model: Model, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each table the row numbers of a batch's places, and the gradients (M, D) that lie there now."""
    return [(table.weight.grad._indices()[0], table.weight.grad._values()) for table in tables(model)]  # type: ignore[union-attr]


def expected(model: Model, settings: TrainSettings, rows: Batch) -> list[Tensor]:
    """Each parameter after one step of gradient descent: clipped gradients of the loss, then those of the penalties."""
    step = Step(model, Config("fm", {}, TrainSettings(l2=0)), 10)
    ids, labels = torch.from_numpy(rows.ids), torch.from_numpy(rows.labels)
    weights = None if rows.weights is None else torch.from_numpy(rows.weights)
    _, total = step.objective(model.lookup(ids), labels, weights)
    step.optimizer.zero_grad(set_to_none=True)
    total.backward()
    known = {id(table.weight): place for table, place in zip(tables(model), places(model, ids), strict=True)}
    grads = []
    for weight in model.parameters():
        assert weight.grad is not None
        if id(weight) in known and weight.shape[1] > 1:
            grads.append(slow(weight.detach(), *known[id(weight)], settings.row_clip, settings.row_clip_least))
        else:
            grads.append(weight.grad.to_dense().clone())
        weight.grad = None
    size = len(labels) if settings.l2_reduction == "mean" else 1
    penalty = settings.l2 / 2 / size * sum(values.square().sum() for values in model.lookup(ids).values())
    penalty = penalty + settings.l2_full / 2 * sum(table.weight.square().sum() for table in tables(model))
    penalty.backward()
    rate = {id(table.weight): settings.lr for table in tables(model)}
    for grad, weight in zip(grads, model.parameters(), strict=True):
        grad += 0 if weight.grad is None else weight.grad.to_dense()
        weight.grad = None
    return [
        weight.detach() - rate.get(id(weight), settings.dense_lr or settings.lr) * grad
        for grad, weight in zip(grads, model.parameters(), strict=True)
    ]


@pytest.mark.parametrize("layout", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(
    "more",
    [
        {"l2": 0.0},
        {"l2": 0.5, "dense_lr": 0.2},
        {"l2": 0.05, "l2_reduction": "sum"},
        {"l2": 0.0, "l2_full": 0.1},
        {"l2": 0.1, "l2_full": 0.1, "row_clip_least": 0.02},
    ],
    ids=str,
)
def test_rows_are_clipped_without_their_penalties(name: str, layout: Layout, more: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.5, "row_clip": 0.004, "row_clip_least": 1e-4}
    settings, model = TrainSettings(**asked | more), network(name, layout)
    step = make_step(model, Config(name, OPTIONS[name], settings), 10)
    assert type(step) is Step
    for number in range(2):
        rows = batch(layout, number)
        found = expected(model, settings, rows)
        free = step.optimizer.param_groups[0]["params"][0].detach().clone()
        step(rows, number)
        for own, other in zip(model.parameters(), found, strict=True):
            torch.testing.assert_close(own.detach(), other, rtol=1e-9, atol=1e-12)
        assert not torch.equal(free, step.optimizer.param_groups[0]["params"][0])


@pytest.mark.parametrize("mode", ["paper", "lazy", "dense"])
@pytest.mark.parametrize("l2", [{"l2": 0.1}, {"l2": 0.0, "l2_full": 0.1}], ids=["rows", "tables"])
def test_a_clip_that_never_bites_changes_nothing(mode: str, l2: dict[str, float]) -> None:
    found = []
    for ratio in (0.0, 1e9):
        model = network("deepfm", NARROW)
        settings = TrainSettings(lr=0.05, sparse_mode=mode, row_clip=ratio, **l2)
        step = Step(model, Config("deepfm", OPTIONS["deepfm"], settings), 10)
        found.append([step(batch(NARROW, number), number) for number in range(6)])
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_the_clip_bites_in_every_sparse_mode() -> None:
    for mode in ("paper", "lazy", "dense"):
        losses = []
        for ratio in (0.0, 1e-6):
            model = network("deepfm", NARROW)
            settings = TrainSettings(lr=0.05, sparse_mode=mode, l2=0.0, row_clip=ratio, row_clip_least=0.0, eps=1e-3)
            step = Step(model, Config("deepfm", OPTIONS["deepfm"], settings), 10)
            losses.append([step(batch(NARROW, number), number) for number in range(6)])
        assert losses[0][0] == losses[1][0]
        assert losses[0][-1] < losses[1][-1]


def test_tables_and_other_weights_have_their_own_rates() -> None:
    model = network("deepfm", NARROW)
    settings = TrainSettings(lr=0.01, dense_lr=0.03, schedule="cosine", warmup=4, l2=0.0)
    step = Step(model, Config("deepfm", OPTIONS["deepfm"], settings), 10)
    tables_, others = step.optimizer.param_groups
    assert {id(weight) for weight in tables_["params"]} == {id(table.weight) for table in tables(model)}
    assert len(tables_["params"]) + len(others["params"]) == len(list(model.parameters()))
    for number, rate in enumerate((0.25, 0.5, 0.75, 1.0)):
        step(batch(NARROW, number), number)
        assert (tables_["lr"], others["lr"]) == pytest.approx((0.01 * rate, 0.03 * rate))


def test_compiled_loops_do_not_take_them_and_one_rate_is_one_group() -> None:
    model = build("fm", NARROW, {"dim": 4})
    for settings, takes in (
        ({}, True),
        ({"dense_lr": 2e-3}, True),
        ({"dense_lr": 1e-3}, False),
        ({"row_clip": 1.0}, False),
        ({"batch_scale": 2.0}, False),
        ({"batch_scale": 2.0, "row_clip": 0.0}, True),
    ):
        config = Config("fm", {"dim": 4}, TrainSettings(**settings))  # type: ignore[arg-type]
        assert ShallowStep.takes(model, config) == takes
        assert not CapturedStep.takes(model, config)
    assert len(Step(model, Config("fm", {}, TrainSettings(dense_lr=2e-3)), 1).optimizer.param_groups) == 1
