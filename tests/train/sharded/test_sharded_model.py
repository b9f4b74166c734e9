"""Each worker's part of a cut model has the rows of the whole one, wherever these come from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fieldwise.config.settings import TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.incremental import take_weights
from fieldwise.train.sharded.sharded_model import Cut
from fieldwise.train.sharded.sharded_model import build as cut_model
from fieldwise.train.steps import tables

WORKERS = 3
BEFORE = Layout((5, 30, 4), (1, 1, 1))
GROWN = Layout((8, 33, 4), (1, 1, 1), (), (5, 30, 4))


def made(name: str, layout: Layout) -> Model:
    torch.manual_seed(1)
    model = build(name, layout, {"buckets": 40} if name == "poly2" else {"dim": 3})
    assert isinstance(model, Model)
    return model


@pytest.fixture(params=range(WORKERS))
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(distributed, "rank", lambda: request.param)
    monkeypatch.setattr(distributed, "count", lambda: WORKERS)
    return request.param


def cut_of(name: str, layout: Layout, precision: str = "float32") -> Cut:
    settings = TrainSettings(weights_precision=precision)
    cut = cut_model(lambda: made(name, layout), settings, torch.device("cpu"))
    torch.manual_seed(2)
    for table in tables(cut.model):
        table.start("normal", 0.5)
    return cut


def part(worker: int, whole: Tensor) -> Tensor:
    each = -(-len(whole) // WORKERS)
    return whole[worker * each : (worker + 1) * each]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_rows_start_as_those_of_a_whole_model(worker: int, precision: str) -> None:
    cut, plain = cut_of("fm", BEFORE, precision), made("fm", BEFORE)
    torch.manual_seed(2)
    for table in tables(plain):
        table.start("normal", 0.5)
    assert list(cut.weights) == [name for name, _ in plain.named_parameters()]
    assert cut.size == plain.size
    for name, own in cut.rows.items():
        assert own.equal(part(worker, plain.state_dict()[name]).to(own.dtype))
        assert own.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


@pytest.mark.parametrize(("name", "layout"), [("fm", GROWN), ("fm", BEFORE), ("poly2", BEFORE)])
def test_rows_of_a_run_before_are_taken_into_grown_tables(worker: int, name: str, layout: Layout) -> None:
    origin, whole, cut = made(name, BEFORE), made(name, layout), cut_of(name, layout)
    rows, expected = take_weights(cut.model, layout, origin), take_weights(whole, layout, origin)
    for key, own in cut.weights.items():
        theirs = dict(whole.named_parameters())[key]
        assert own.equal(part(worker, theirs) if key in cut.rows else theirs)
        if key in cut.rows:
            assert rows[own].equal(part(worker, expected[theirs]))


def test_rows_that_are_put_reach_the_worker_that_has_them(worker: int) -> None:
    cut, whole = cut_of("fm", BEFORE, "bf16"), torch.zeros(39, 3)
    (table, *_) = (table for name, table in cut.tables.items() if "embedding" in name)
    table.own.data.zero_()
    for first, count in ((0, 5), (11, 9), (25, 14)):
        rows = torch.randn(count, 3).bfloat16().float()
        whole[first : first + count] = rows
        table.put(first, rows)
    assert table.own.float().equal(part(worker, whole))


def test_a_whole_table_is_here() -> None:
    (table, *_) = tables(made("fm", BEFORE))
    table.put(37, torch.ones(2, table.weight.shape[1]))
    own, numbers = table.here
    assert own is table.weight
    assert numbers == range(39)
    assert own[37:].eq(1).all()
    assert not own[:37].eq(1).any()
