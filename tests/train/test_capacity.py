"""What does not fit into memory is refused by its sizes, before anything is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fieldwise import cli
from fieldwise.config import memory
from fieldwise.config.errors import TooLarge
from fieldwise.config.settings import Config, TrainSettings
from fieldwise.data.schema import Layout
from fieldwise.models import MODELS, build, options
from fieldwise.nn.model import Model
from fieldwise.train import capacity
from fieldwise.train.steps import make_step
from tests.conftest import Trained

CPU = torch.device("cpu")
SMALL = Layout.of([50] * 8)


def maker(name: str, layout: Layout, **settings: object) -> tuple[Config, Callable[[], Model]]:
    config = Config(name, {**options(name), **settings}, TrainSettings(batch_size=100, average=0.0))

    def make() -> Model:
        model = build(name, layout, config.options)
        assert isinstance(model, Model)
        return model

    return config, make


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_state_are_counted_to_the_byte(name: str) -> None:
    config, make = maker(name, SMALL)
    found = capacity.need(config, make, 100)
    model = make()
    step = make_step(model, config, 1)
    held = sum(weight.numel() * (1 + len(step.optimizer.names)) for weight in model.parameters())
    dense = model.size - sum(table.weight.numel() for table in capacity.tables(model))
    assert found.learnt == model.size
    assert found.tables + found.weights == 4 * (held + dense)  # and a gradient of what is in no table


def test_narrow_tables_take_two_bytes_a_weight_less() -> None:
    config, make = maker("fm", SMALL)
    narrow = replace(config, train=replace(config.train, weights_precision="bf16"))
    weights = sum(table.weight.numel() for table in capacity.tables(make()))
    assert capacity.need(config, make, 100).tables - capacity.need(narrow, make, 100).tables == 2 * weights


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("fm", {"dim": 10**9}, "lower model.dim (1000000000)"),
        ("fm", {"dim": 10**30}, f"fm would have more weights than can be counted; lower model.dim ({10**30})"),
        ("kpnn", {"dim": 10**9}, "kpnn would have more weights than can be counted; lower model.dim (1000000000) or "),
        ("fnn", {"hidden": (10**9,)}, "lower model.hidden (1000000000) or model.dim (32)"),
        ("fnn", {"hidden": (10**12, 10**12)}, "lower model.hidden (1000000000000,1000000000000) or"),
        ("fnn", {"members": 10**9}, "lower model.members (1000000000) or model.hidden (400,400) or"),
        ("pin", {"subnet": (10**9, 5)}, "lower model.subnet (1000000000,5) or model.hidden (400,400) or"),
    ],
)
def test_one_line_names_the_settings(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, settings: dict, named: str
) -> None:
    given = [f"model.{key}={list(v) if isinstance(v, tuple) else v}" for key, v in settings.items()]
    tracemalloc.start()
    with pytest.raises(SystemExit) as end:
        cli.main(["train", str(trained.data), "--model", name, "--set", *given, "--out", str(tmp_path / "run")])
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert named in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["ffm", "ipnn", "kpnn", "kfm", "nifm", "pin", "afm"])
def test_pairs_of_very_many_fields_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device=None: 10 * 10**9)
    config, make = maker(name, Layout.of([10] * 5000))
    found = capacity.need(config, make, 100, scored=4096)
    with pytest.raises(TooLarge, match=r"parameters over 5,000 fields; training it takes .* prepare fewer fields"):
        capacity.check(config, found, 5000, CPU)


def test_pairs_that_cannot_even_be_listed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device=None: 10 * 10**9)
    config, make = maker("ipnn", Layout.of([10] * 50_000))
    with pytest.raises(TooLarge, match="50,000 fields have 1,249,975,000 pairs, too many for memory"):
        capacity.need(config, make, 100)


def test_a_batch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    config, make = maker("fnn", SMALL)
    small, large = (capacity.need(config, make, rows) for rows in (100, 10**9))
    monkeypatch.setattr(memory, "available", lambda device=None: 10**9)
    capacity.check(config, small, 8, CPU)
    with pytest.raises(TooLarge, match=r"lower model.hidden \(400,400\) or train.batch_size \(100\) or"):
        capacity.check(config, large, 8, CPU)


def test_workers_on_one_machine_share_it_and_cut_tables_lie_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    config, make = maker("lr", Layout.of([10**6] * 8))
    found = capacity.need(config, make, 10)
    monkeypatch.setattr(memory, "available", lambda device=None: 2 * found.bytes)
    capacity.check(config, found, 8, CPU)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(TooLarge):
        capacity.check(config, found, 8, CPU)
    capacity.check(config, found, 8, CPU, cut=True)


def test_what_a_container_may_take_bounds_what_is_free(tmp_path: Path) -> None:
    assert memory._left_of_limits(tmp_path) == []
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500\n")
    assert memory._left_of_limits(tmp_path) == []
    (tmp_path / "memory.max").write_text("900\n")
    assert memory._left_of_limits(tmp_path) == [400]
    (tmp_path / "memory.stat").write_text("anon 380\nfile 120\n")
    assert memory._left_of_limits(tmp_path) == [520]


def test_free_memory_is_no_more_than_there_is() -> None:
    assert 0 < memory.available() <= memory.available(CPU) * 1.5
    assert memory.total(CPU) > 10**8


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes"), False),
    ],
)
def test_what_says_that_memory_is_used_up(error: Exception, says: bool) -> None:
    assert memory.ran_out(error) == says


def test_memory_that_runs_out_later_is_one_line(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes\nstack")

    monkeypatch.setattr("fieldwise.train.network.Network.fit", fit)
    with pytest.raises(SystemExit) as end:
        cli.main(["train", str(trained.data), "--model", "lr", "--out", str(tmp_path / "run")])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: out of memory: DefaultCPUAllocator")


def test_counting_draws_no_random_number() -> None:
    """A run's numbers are the same whether its model was counted before or not."""
    torch.manual_seed(0)
    before = torch.get_rng_state().numpy().copy()
    for name in MODELS:
        capacity.need(*maker(name, SMALL), 100)
    np.testing.assert_array_equal(torch.get_rng_state().numpy(), before)
