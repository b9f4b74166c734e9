"""Checkpoints of cut tables: what is saved comes back, the last are kept, and damage is said in one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fieldwise.config.errors import BundleError, TrainingError
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train.sharded.sharded_model import Cut
from fieldwise.train.sharded.sharded_model import build as cut_model
from fieldwise.train.sharded.store import CutStore
from fieldwise.train.state import State
from fieldwise.train.steps import ShardedStep, tables

SETTINGS = TrainSettings(tables="sharded")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A group of one worker."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def fm() -> Model:
    model = build("fm", Layout.of([7, 20]), {"dim": 3})
    assert isinstance(model, Model)
    return model


@pytest.fixture
def cut() -> Cut:
    made = cut_model(fm, SETTINGS, torch.device("cpu"))
    for table in tables(made.model):
        table.start("normal", 0.1)
    return made


@pytest.fixture
def store(cut: Cut, tmp_path: Path) -> CutStore:
    optimizer = ShardedStep(cut, Config("fm", {"dim": 3}, SETTINGS), 10).optimizer
    average = {name: value.clone() + 1 for name, value in cut.live.items()}
    return CutStore(tmp_path, cut, optimizer, average, keep=2)


def saved(store: CutStore, *steps: int, best: int = 1) -> list[str]:
    for step in steps:
        store.save(State(step, best_step=best))
    store.wait()
    return sorted(path.name for path in store.folder.iterdir())


def test_all_that_is_saved_comes_back_as_it_was(store: CutStore, cut: Cut) -> None:
    states = {
        f"{key} {name}": value
        for name, weight in cut.weights.items()
        for key, value in store.optimizer.whole_state(weight, by_rows=name in cut.rows).items()
    }
    assert sum(name.startswith("last") for name in states) == len(cut.tables)
    everything = {**cut.live, **states, **{f"average {name}": value for name, value in store.average.items()}}
    before = {name: value.clone() for name, value in everything.items()}
    store.optimizer.param_groups[0]["step"] = 12
    store.save(State(12, best_step=1))
    for value in everything.values():
        value.fill_(-9)  # while it is being written
    store.optimizer.param_groups[0]["step"] = 0
    store.wait()
    assert store.load() == State(12, best_step=1)
    assert store.optimizer.param_groups[0]["step"] == 12
    for name, value in everything.items():
        assert value.equal(before[name]), name


def test_the_last_and_the_best_are_kept(store: CutStore) -> None:
    left = saved(store, 1, 2, 3)
    assert left == ["000000000001", "000000000002", "000000000003"]
    assert saved(store, 4) == ["000000000001", "000000000003", "000000000004"]
    assert saved(store, 5, best=5) == ["000000000004", "000000000005"]


def test_a_half_written_one_is_not_read(store: CutStore) -> None:
    saved(store, 1)
    shutil.copytree(store.folder / "000000000001", store.folder / ".000000000002.tmp")
    assert store.load() == State(1, best_step=1)
    assert saved(store, 3) == ["000000000001", "000000000003"]


def test_the_best_weights_are_the_averaged_ones_in_an_ordinary_file(store: CutStore, cut: Cut) -> None:
    own = {name: table.own.clone() for name, table in cut.tables.items()}
    saved(store, 1)
    store.take_best(1)
    found = load_file(store.best)
    plain = fm()
    plain.load_state_dict(found)
    for name, rows in own.items():
        torch.testing.assert_close(found[f"{name}.weight"], rows + 1)


def test_damage_is_one_line(store: CutStore) -> None:
    saved(store, 1)
    (store.folder / "000000000001" / "__0_0.distcp").unlink()
    with pytest.raises(BundleError, match="the checkpoint is damaged") as error:
        store.load()
    assert "\n" not in str(error.value)
    (store.folder / "000000000001" / "progress.json").write_text("{")
    with pytest.raises(BundleError, match="the checkpoint is damaged"):
        store.load()


def test_what_cannot_be_written_is_one_line(store: CutStore) -> None:
    store.folder.write_text("a file in the way")
    with pytest.raises(TrainingError, match="the checkpoint cannot be written") as error:
        store.save(State(1, best_step=1))
    assert "\n" not in str(error.value)
