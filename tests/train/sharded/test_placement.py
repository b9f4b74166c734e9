"""Tables are whole with every worker as long as they fit."""

from __future__ import annotations

import pytest
import torch

from fieldwise.config import memory
from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.sharded import placement
from fieldwise.train.sharded.sharded_model import refuse

CPU = torch.device("cpu")


def fm() -> Model:
    model = build("fm", Layout.of([1000, 1000]), {"dim": 9})
    assert isinstance(model, Model)
    return model


def chosen(asked: str, optimizer: str = "adam") -> str:
    return placement.tables_of(Config("fm", {}, TrainSettings(tables=asked, optimizer=optimizer)), fm, CPU)


def test_what_fits_is_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "count", lambda: 2)
    monkeypatch.setattr(distributed, "from_first", lambda action: action())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    weights = 2000 * 10 + 1
    monkeypatch.setattr(memory, "total", lambda device: 4 * weights * 2 * 3)
    assert chosen("auto") == "replicated"
    monkeypatch.setattr(memory, "total", lambda device: 4 * weights * 2 * 3 - 1)
    assert chosen("auto") == "sharded"
    assert chosen("auto", "adagrad") == "replicated"
    assert chosen("replicated") == "replicated"
    assert chosen("sharded", "adagrad") == "sharded"


def test_one_process_has_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total", lambda device: 0)
    assert chosen("auto") == "replicated"


def test_this_machine_has_memory() -> None:
    assert memory.total(CPU) > 2**28


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown train\.tables 'shard'; did you mean 'sharded'"):
        TrainSettings(tables="shard")


@pytest.mark.parametrize("settings", [{"row_clip": 0.5}, {"batch_scale": 2.0}])
def test_clipped_rows_are_refused(settings: dict[str, float]) -> None:
    expected = r"--tables sharded needs train\.row_clip=0, found (0\.5|1); or take --tables replicated"
    with pytest.raises(ConfigError, match=expected):
        refuse(Config("fm", {}, TrainSettings(tables="sharded", **settings)))  # type: ignore[arg-type]


def test_a_lone_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs workers; start them with --workers or torchrun, found a lone process"):
        refuse(Config("fm", {}, TrainSettings(tables="sharded", optimizer="adagrad")))
