"""train.batch_scale: what it makes of the other settings, and what a run says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fieldwise.config.errors import ConfigError
from fieldwise.config.settings import Config, TrainSettings, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from fieldwise.train.large_batches import scaled
from fieldwise.train.loop import train
from fieldwise.train.network import settled

SETTINGS = {"model.name": "fnn", "model.dim": 4, "model.hidden": (8,), "train.epochs": 1, "train.batch_size": 50}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "data"
    log = World("demo").log(2000).table
    prepare({"train": lambda: iter([log])}, folder, "click")
    return folder


def resolved(rows: int = 1_000_000, deep: bool = True, **asked: Any) -> TrainSettings:
    return settled(Config("fnn", {}, TrainSettings(**asked)), rows, deep).train


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"batch_size": 16_000, "lr": 2e-3, "dense_lr": 4e-3 * 2**0.5, "l2": 24e-3, "warmup": 13, "row_clip": 1}),
        ({"batch_size": 1000, "warmup": 100}, {"batch_size": 8000, "warmup": 13}),
        ({"batch_size": 1000, "warmup": 7}, {"warmup": 7}),
        ({"warmup": 0, "batch_size": 100, "l2_full": 0.5}, {"warmup": 0, "batch_size": 800, "l2_full": 4.0}),
        ({"l2_reduction": "sum", "l2": 1e-6}, {"l2": 1e-6}),
        ({"dense_lr": 1e-3}, {"lr": 2e-3, "dense_lr": 8**0.5 * 1e-3}),
        ({"row_clip": 0.0}, {"row_clip": 0}),
        ({"row_clip": 0.5, "row_clip_least": 1e-4}, {"row_clip": 0.5, "row_clip_least": 1e-4}),
        ({"l2_weights": 1e-4, "betas": (0.8, 0.9)}, {"l2_weights": 1e-4, "betas": (0.8, 0.9), "epochs": 20}),
    ],
    ids=str,
)
def test_settings_of_a_batch_eight_times_as_large(asked: dict[str, Any], expected: dict[str, float]) -> None:
    found = resolved(batch_scale=8.0, **asked)
    assert {name: getattr(found, name) for name in expected} == {
        name: pytest.approx(value) for name, value in expected.items()
    }
    assert found.batch_scale == 1
    assert resolved(batch_scale=8.0, **asked) == settled(Config("fnn", {}, found), 1_000_000).train


def test_small_data_keep_the_average_of_their_base_batch() -> None:
    assert (resolved(20_000, batch_scale=4.0).average, resolved(20_000, batch_scale=4.0).batch_size) == (1.0, 400)


def test_a_scale_of_one_is_nothing() -> None:
    for asked in ({}, {"row_clip": 1.0, "dense_lr": 1e-3}, {"optimizer": "sgd"}):
        settings = TrainSettings(**asked)  # type: ignore[arg-type]
        assert scaled(settings) is settings
    assert resolved(batch_scale=1.0) == resolved()
    assert resolved().row_clip == -1
    assert TrainSettings().row_ratio == 0


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
def test_other_optimizers_have_other_rules(optimizer: str) -> None:
    expected = rf"follows a rule for train\.optimizer=adam, found {optimizer}; set train\.batch_size"
    with pytest.raises(ConfigError, match=expected):
        resolved(batch_scale=2.0, optimizer=optimizer)


def test_a_run_says_what_it_made_of_them_and_its_config_is_a_recipe(data: Path, tmp_path: Path) -> None:
    config = load_config(base=SETTINGS | {"train.batch_scale": 4})
    report = train(config, data, tmp_path / "one", pairs=False)
    expected = {"scale": 4, "batch_size": 200, "lr": 2e-3, "dense_lr": 4e-3, "row_clip": 1, "row_clip_least": 1e-5}
    assert report["batch_scale"] == expected | {"l2": 12e-3, "l2_full": 0, "warmup": 12}
    events = [json.loads(line) for line in (tmp_path / "one" / "log.jsonl").read_text().splitlines()]
    assert [event for event in events if event["event"] == "batch scale"] == [
        {"event": "batch scale", **report["batch_scale"]}
    ]
    assert train(config, data, tmp_path / "one", resume=True) == report
    again = train(load_config(tmp_path / "one" / "config.toml"), data, tmp_path / "two", pairs=False)
    assert "batch_scale" not in again
    assert (again["valid"], again["test"]) == (report["valid"], report["test"])


def test_a_run_without_a_scale_says_nothing_of_it(data: Path, tmp_path: Path) -> None:
    assert "batch_scale" not in train(load_config(base=SETTINGS), data, tmp_path / "run", pairs=False)
    assert "batch scale" not in (tmp_path / "run" / "log.jsonl").read_text()


def test_a_run_that_continues_with_two_rates_starts_its_optimiser_anew(data: Path, tmp_path: Path) -> None:
    train(load_config(base=SETTINGS), data, tmp_path / "first", pairs=False)
    more = {"train.continue_from": str(tmp_path / "first")}
    for number, (asked, kept) in enumerate((({}, True), ({"train.batch_scale": 2}, False))):
        train(load_config(base=SETTINGS | more | asked), data, tmp_path / str(number), pairs=False)
        assert ("starts anew" in (tmp_path / str(number) / "log.jsonl").read_text()) != kept
