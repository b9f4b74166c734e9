"""What a run logs, handed on to others: once, also after a kill, and never at the price of the run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.config.progress import Progress
from fieldwise.config.settings import Config, load_config
from fieldwise.train import callbacks
from fieldwise.train.callbacks import Adapter, Callback, MLflow, Started, TensorBoard, WeightsAndBiases, step_of
from fieldwise.train.estimator import Classifier
from fieldwise.train.loop import train
from tests.conftest import Trained

TINY = ["device=cpu", "model.dim=2", "train.epochs=2", "train.batch_size=50", "train.lr=0.01"]


def settings(*more: str, model: str = "fm") -> Config:
    own = [one for one in TINY if model != "gbdt" or one == "device=cpu"]
    return load_config(overrides=[f"model.name={model}", *own, *more])


class Heard(Callback):
    """Keeps what it hears; `fails_at` names an event at which it raises, with `error`."""

    def __init__(self, fails_at: str = "", error: type[BaseException] = RuntimeError, at_step: int = 0) -> None:
        self.fails_at, self.error, self.at_step = fails_at, error, at_step
        self.calls: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.report: Mapping[str, Any] = {}

    def start(self, run: Started) -> None:
        self.calls.append("start")
        self._fail("start", self.at_step)

    def record(self, record: Mapping[str, Any]) -> None:
        self.records.append(dict(record))
        self._fail(str(record["event"]), step_of(record, 0))

    def finish(self, report: Mapping[str, Any]) -> None:
        self.calls.append("finish")
        self.report = report

    def close(self) -> None:
        self.calls.append("close")

    def _fail(self, event: str, step: int) -> None:
        if event == self.fails_at and step >= self.at_step:
            raise self.error("no such host\nsecond line")


class Said(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def places(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(record["event"], step_of(record, 0)) for record in records]


@pytest.mark.parametrize("model", ["fm", "gbdt"])
def test_a_callback_hears_the_log_and_the_report(trained: Trained, tmp_path: Path, model: str) -> None:
    heard = Heard()
    report = train(settings(model=model), trained.data, tmp_path / "run", pairs=False, callbacks=[heard])
    assert heard.records == log_of(tmp_path / "run")
    assert heard.report == report
    assert heard.calls == ["start", "finish", "close"]


def test_a_run_that_goes_on_hands_on_no_step_twice(trained: Trained, tmp_path: Path) -> None:
    """The first part is killed after steps that no checkpoint has: they are done, and logged, again."""
    config = settings("train.checkpoint_minutes=60")
    first, second, whole = Heard("train", KeyboardInterrupt, at_step=8), Heard(), Heard()
    with pytest.raises(KeyboardInterrupt):
        train(config, trained.data, tmp_path / "run", pairs=False, callbacks=[first])
    train(config, trained.data, tmp_path / "run", resume=True, pairs=False, callbacks=[second])
    train(config, trained.data, tmp_path / "whole", pairs=False, callbacks=[whole])
    assert first.calls == ["start", "close"]
    assert places(first.records + second.records) == places(whole.records) == places(log_of(tmp_path / "run"))


def test_callbacks_are_no_part_of_what_a_run_is(trained: Trained, tmp_path: Path, monkeypatch: Any) -> None:
    """A run goes on with others, and one that is done is known with others."""
    monkeypatch.setattr(callbacks, "ADAPTERS", {"mine": Mine})
    with pytest.raises(KeyboardInterrupt):
        train(settings(), trained.data, tmp_path / "run", callbacks=[Heard("valid", KeyboardInterrupt)])
    named = settings("train.callbacks=mine:here")
    report = train(named, trained.data, tmp_path / "run", resume=True, pairs=False)
    assert Mine.heard == log_of(tmp_path / "run")[-len(Mine.heard) :]
    assert train(settings(), trained.data, tmp_path / "run", resume=True) == report


class Mine(Adapter):
    package = "json"
    heard: list[dict[str, Any]] = []  # noqa: RUF012

    def record(self, record: Mapping[str, Any]) -> None:
        assert self.place == "here"
        self.heard.append(dict(record))


def test_a_callback_that_fails_is_left_out_and_named_and_the_run_goes_on(trained: Trained, tmp_path: Path) -> None:
    broken, sound, said = Heard("valid"), Heard(), Said()
    report = train(settings(), trained.data, tmp_path / "run", progress=said, pairs=False, callbacks=[broken, sound])
    assert report["warnings"] == ["callback Heard-0 failed and was left out: RuntimeError: no such host"]
    assert report["warnings"][0] in said.texts
    event = {"event": "callback", "name": "Heard-0", "error": "RuntimeError: no such host"}
    assert [line for line in log_of(tmp_path / "run") if line["event"] == "callback"] == [event]
    assert places(broken.records)[-1][0] == "valid"
    assert sound.report == report


def test_a_callback_that_cannot_start_stops_the_run_before_its_first_step(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="callback Heard-0 did not start: RuntimeError: no such host; mend it"):
        train(settings(), trained.data, tmp_path / "run", callbacks=[Heard("start")])
    assert not (tmp_path / "run" / "log.jsonl").exists()
    train(settings(), trained.data, tmp_path / "run", pairs=False)  # the folder is free


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("tensorbord", "unknown train.callbacks 'tensorbord'; did you mean 'tensorboard'"),
        ("absent", "needs the package no_such_package; pip install no_such_package, or leave it out"),
    ],
)
def test_a_wrong_name_or_a_missing_package_leaves_no_folder(
    trained: Trained, tmp_path: Path, monkeypatch: Any, named: str, error: str
) -> None:
    absent = type("Absent", (Adapter,), {"package": "no_such_package"})
    monkeypatch.setattr(callbacks, "ADAPTERS", {**callbacks.ADAPTERS, "absent": absent})
    with pytest.raises(ConfigError, match=error):
        train(settings(f"train.callbacks={named}"), trained.data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fit_takes_callbacks_and_refuses_those_that_would_write_into_its_own_folder(monkeypatch: Any) -> None:
    heard, random = Heard(), np.random.default_rng(0)
    x, y = random.integers(0, 4, (120, 2)), random.integers(0, 2, 120)
    own = Classifier("lr", {"train.epochs": 1}, device="cpu").fit(x, y, callbacks=[heard])
    assert heard.report == own.report_
    monkeypatch.setattr(callbacks, "ADAPTERS", {"json": Mine})
    with pytest.raises(ConfigError, match="fit keeps no run folder: name one, as in json:logs, found json without"):
        Classifier("lr", {"train.callbacks": "json"}, device="cpu").fit(x, y)


def interrupted_and_resumed(trained: Trained, out: Path, named: str) -> list[dict[str, Any]]:
    """The log of a run with these callbacks that was killed and went on."""
    config = settings(f"train.callbacks={named}")
    with pytest.raises(KeyboardInterrupt):
        train(config, trained.data, out, pairs=False, callbacks=[Heard("train", KeyboardInterrupt, at_step=8)])
    train(config, trained.data, out, resume=True, pairs=False)
    return log_of(out)


def curve(records: list[dict[str, Any]], event: str, name: str) -> list[tuple[int, float]]:
    return [(one["step"], one[name]) for one in records if one["event"] == event]


needs = {
    own: pytest.mark.skipif(not own.there(), reason=f"{own.package} is not installed")
    for own in Adapter.__subclasses__()
}


@needs[TensorBoard]
def test_tensorboard_has_the_curves_once(trained: Trained, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = interrupted_and_resumed(trained, tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for event, name in (("train", "loss"), ("valid", "auc")):
        found = [(one.step, one.value) for one in events.Scalars(f"{event}/{name}")]
        assert [step for step, _ in found] == [step for step, _ in curve(log, event, name)]
        np.testing.assert_allclose([v for _, v in found], [v for _, v in curve(log, event, name)], rtol=1e-6)
    assert len(events.Scalars("result/test/auc")) == 1


@needs[MLflow]
@pytest.mark.filterwarnings("ignore")  # of MLflow's own: a store in files is old, but needs no server
def test_mlflow_has_one_run_with_the_curves(trained: Trained, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    log = interrupted_and_resumed(trained, tmp_path / "run", f"mlflow:{uri}")
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("fieldwise").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.lr"] == "0.01"
    for event, name in (("train", "loss"), ("valid", "auc")):
        found = client.get_metric_history(run.info.run_id, f"{event}/{name}")
        assert [(one.step, one.value) for one in found] == curve(log, event, name)


@needs[WeightsAndBiases]
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_stays_on_this_machine(trained: Trained, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    report = train(settings("train.callbacks=wandb"), trained.data, tmp_path / "run", pairs=False)
    assert report["warnings"] == []
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    wanted, until = (b"valid/auc", b"result/test/auc"), time.monotonic() + 30
    # A process of its own writes the file, at its leisure.
    while not all(name in kept.read_bytes() for name in wanted):
        assert time.monotonic() < until
        time.sleep(0.1)
