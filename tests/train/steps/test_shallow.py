"""The compiled step of LR, FM and FFM equals the plain one: loss, weights and optimiser state, step by step."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.batches import Batch
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train import network
from fieldwise.train.steps import ShallowStep, Step, make_step
from fieldwise.train.steps.shallow import Marks

LAYOUT = Layout.of([40, 30, 2, 25, 3, 9, 30])
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("lr", {}),
    ("fm", {"dim": 5}),
    ("ffm", {"dim": 3}),
    ("ffm", {"dim": 4}),
    ("ffm", {"dim": 2, "linear": False, "input_norm": True}),
]


WIDE = Layout((40, 30, 2, 25, 3, 9, 30), (1, 5, 1, 3, 4, 1, 2), (1, 5, 6))


def drawn_ids(random: np.random.Generator, layout: Layout, rows: int) -> Any:
    """Ids (B, C): of one value, of sets that are partly empty, and of neighbouring anchors."""
    columns = []
    for field, (size, width) in enumerate(zip(layout.sizes, layout.widths, strict=True)):
        ids = (random.random((rows, width)) ** 3 * size).astype(np.int32)
        if field in layout.ordered:
            ids = np.minimum(ids[:, :1] + np.sort(random.integers(0, 2, ids.shape), axis=1), size - 1).astype(np.int32)
            ids[:, 0] = np.maximum(ids[:, -1] - 1, 0)
        else:
            ids[:, 1:][random.random((rows, width - 1)) < 0.5] = -1
        columns.append(ids)
    return np.hstack(columns)


def batch(number: int, dtype: type) -> Batch:
    """Rows with many repetitions and some ids that occur once; every other batch has weights."""
    random = np.random.default_rng(number)
    rows = 700 + number % 3
    ids = drawn_ids(random, LAYOUT, rows)
    weights = random.random(rows).astype(dtype) if number % 2 else None
    return Batch(ids, (random.random(rows) < 0.3).astype(dtype), weights)


def after(kind: type[Step], name: str, options: dict[str, Any], settings: TrainSettings, dtype: torch.dtype) -> Any:
    """Losses, and weights and state after some steps."""
    torch.manual_seed(0)
    model = build(name, LAYOUT, options)
    assert isinstance(model, Model)
    step = kind(model.to(dtype).train(), Config(name, options, settings), 100)
    losses = [step(batch(number, np.float64 if dtype == torch.float64 else np.float32), number) for number in range(9)]
    state = [value for weight in model.parameters() for value in step.optimizer.state[weight].values()]
    return torch.tensor(losses), *(weight.detach() for weight in model.parameters()), *state


def compare(name: str, options: dict[str, Any], tolerance: float, dtype: torch.dtype, **settings: Any) -> None:
    chosen = TrainSettings(lr=0.02, **settings)
    plain, fast = (after(kind, name, options, chosen, dtype) for kind in (Step, ShallowStep))
    for one, two in zip(plain, fast, strict=True):
        torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "ftrl", "ftrl_l1": 1e-3, "ftrl_l2": 0.1}, {"optimizer": "adagrad"}]
)
@pytest.mark.parametrize(("name", "options"), MODELS, ids=str)
def test_equals_the_plain_step(name: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    compare(name, options, 1e-12, torch.float64, l2=0.2, **settings)
    compare(name, options, 2e-5, torch.float32, l2=0.2, **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "ftrl", "ftrl_l1": 1e-3, "ftrl_l2": 0.1}, {"optimizer": "adagrad"}]
)
@pytest.mark.parametrize(("name", "options"), [("lr", {}), ("fm", {"dim": 5}), ("fm", {"dim": 16})], ids=str)
def test_fields_of_several_ids_too(
    name: str, options: dict[str, Any], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets and interpolated numbers, whose vectors are means of several rows."""
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", WIDE)
    compare(name, options, 1e-12, torch.float64, l2=0.2, **settings)
    compare(name, options, 2e-5, torch.float32, l2=0.2, **settings)


@pytest.mark.parametrize("fields", [2, 3, 4, 5, 8, 12, 13])
def test_any_number_of_fields(fields: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of four numbers change places four by four."""
    monkeypatch.setattr(
        sys.modules[__name__], "LAYOUT", Layout.of([40, 3, 11, 25, 30, 9][:fields] * 2 + [7]).only(range(fields))
    )
    for options in ({"dim": 4}, {"dim": 4, "linear": False}, {"dim": 8}):
        compare("ffm", options, 1e-12, torch.float64, l2=0.2, optimizer="adagrad")


@pytest.mark.parametrize(
    "settings",
    [
        {"sparse_mode": "lazy", "eps_mode": "hat", "betas": (0.8, 0.99)},
        {"l2": 1e-3, "l2_reduction": "sum"},
        {"l2": 0.0, "schedule": "cosine", "warmup": 3},
    ],
    ids=str,
)
def test_settings_mean_the_same(settings: dict[str, Any]) -> None:
    compare("fm", {"dim": 5}, 1e-12, torch.float64, **settings)


@pytest.mark.parametrize("layout", [LAYOUT, WIDE], ids=["one id", "several ids"])
def test_two_threads_equal_one_to_rounding(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LAYOUT", layout)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        found.append(after(ShallowStep, "fm", {"dim": 5}, TrainSettings(lr=0.02), torch.float64))
    torch.set_num_threads(threads)
    for one, two, again in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)
        assert two.equal(again)


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("fm", {}, {"clip": 1.0}),
        ("fm", {}, {"l2_full": 0.1}),
        ("fm", {}, {"optimizer": "sgd"}),
        ("fm", {}, {"sparse_mode": "dense"}),
        ("kfm", {"dim": 3}, {}),
        ("deepfm", {"dim": 3}, {}),
        ("poly2", {}, {}),
    ],
)
def test_the_rest_goes_the_plain_way(name: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    config = Config(name, options, TrainSettings(**settings))
    model = build(name, LAYOUT, options)
    assert isinstance(model, Model)
    assert type(make_step(model, config, 10)) is Step


def test_ffm_over_sets_goes_the_plain_way() -> None:
    for name, kind in (("ffm", Step), ("fm", ShallowStep)):
        model = build(name, Layout((5, 6), (1, 2)), {"dim": 2})
        assert isinstance(model, Model)
        assert type(make_step(model, Config(name, {"dim": 2}), 10)) is kind


def test_training_takes_it() -> None:
    model = build("fm", LAYOUT, {"dim": 2})
    assert isinstance(model, Model)
    assert type(network.make_step(model, Config("fm", {"dim": 2}), 10)) is ShallowStep


def test_marks_begin_anew_before_they_overflow() -> None:
    marks = Marks(3)
    assert [marks.next(500) for _ in range(2)] == [0, 1000]
    marks.seen[:], marks.base = marks.base, np.iinfo(np.int32).max - 999
    assert marks.next(500) == 0
    assert (marks.seen < 0).all()
