"""Stopped at any moment and resumed equals never stopped."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from fieldwise.bundle import bundle
from fieldwise.config.errors import TrainingError
from fieldwise.config.settings import load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.world import World
from fieldwise.train import checkpoint
from fieldwise.train import network as room
from fieldwise.train.loop import Progress, train

SETTINGS = {
    "model.name": "pin",
    "model.dim": 4,
    "model.subnet": (4, 2),
    "model.hidden": (8,),
    "model.dropout": 0.2,
    "train.epochs": 3,
    "train.batch_size": 64,
    "train.lr": 0.01,
    "train.checkpoint_minutes": 0.0,
    "train.patience": 5,
}


class Killed(Exception):
    pass


class KillAt(Progress):
    """Stops the run at a step, as a kill would: nothing is cleaned up."""

    def __init__(self, step):
        self.left = step

    def step(self, rows, loss, epoch):
        self.left -= 1
        if self.left == 0:
            raise Killed


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "data"
    log = World("demo").log(1200).table
    prepare({"train": lambda: iter([log])}, folder, "click")
    return folder


def outcome(out):
    """What must be the same: weights, metrics, and the log but for the clock."""
    weights = load_file(out / "bundle" / "weights.safetensors")
    report = json.loads((out / "report.json").read_text())
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    clock = {"rows_per_s", "seconds", "times"}
    events = [{k: v for k, v in event.items() if k not in clock} for event in events]
    return weights, {k: v for k, v in report.items() if k not in clock}, events


def assert_same(one, two):
    assert one[0].keys() == two[0].keys()
    assert all(one[0][key].equal(two[0][key]) for key in one[0])
    assert one[1] == two[1]
    assert one[2] == two[2]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train.sparse_mode": "lazy"},
        {"train.sparse_mode": "dense"},
        {"train.optimizer": "adagrad"},
        {"train.optimizer": "ftrl"},
        {"train.optimizer": "sgd"},
        {"model.norm": "batch", "train.average": 0.5},
        {"model.norm": "batch", "train.schedule": "cosine", "train.warmup": 5, "train.clip": 1.0},
        {"train.batch_scale": 2, "train.row_clip": 0.01, "train.l2": 0.1},
        {"train.batch_size": 16},  # several steps to a line of the log
    ],
    ids=lambda changes: "-".join(str(v) for v in changes.values()) or "paper",
)
def test_killed_often_and_resumed(data, tmp_path, changes):
    config = load_config(base={**SETTINGS, **changes})
    train(config, data, tmp_path / "whole")
    moments = random.Random(str(changes))
    kills = 0
    for _ in range(20):
        try:
            train(config, data, tmp_path / "killed", resume=True, progress=KillAt(moments.randint(1, 12)))
            break
        except Killed:
            kills += 1
    train(config, data, tmp_path / "killed", resume=True)
    assert kills >= 3
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))


@pytest.mark.parametrize(
    "place",
    [(room.Network, "_evaluate"), (checkpoint.WholeStore, "save"), (bundle, "write")],
    ids=lambda place: place[1],
)
def test_killed_between_evaluation_checkpoint_and_end(data, tmp_path, monkeypatch, place):
    config = load_config(base=SETTINGS)
    train(config, data, tmp_path / "whole")
    original = getattr(*place)
    calls = []

    def dies_after(*arguments):
        result = original(*arguments)
        calls.append(1)
        if len(calls) == 2 or place[1] == "write":
            raise Killed
        return result

    monkeypatch.setattr(*place, dies_after)
    with pytest.raises(Killed):
        train(config, data, tmp_path / "killed")
    monkeypatch.undo()
    assert not (tmp_path / "killed" / "DONE").exists()
    train(config, data, tmp_path / "killed", resume=True)
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))


def test_kill_9_of_a_real_process(data, tmp_path):
    settings = [f"--set={k}={','.join(map(str, v)) + ',' if isinstance(v, tuple) else v}" for k, v in SETTINGS.items()]
    command = [sys.executable, "-m", "fieldwise", "train", str(data), *settings, "--set=train.epochs=12", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out, *more):
        return subprocess.Popen([*command, "--out", str(out), *more], env=environment, stdout=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait() == 0
    process = start(tmp_path / "killed")
    for wait in (0.05, 0.3):
        while process.poll() is None and not list((tmp_path / "killed").glob("checkpoint/0*")):
            time.sleep(0.01)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = start(tmp_path / "killed", "--resume")
    assert process.wait() == 0
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))


def test_resume_refuses_other_settings_and_keeps_a_finished_run(data, tmp_path):
    config = load_config(base={**SETTINGS, "train.epochs": 1})
    report = train(config, data, tmp_path / "run")
    assert train(config, data, tmp_path / "run", resume=True) == report
    with pytest.raises(TrainingError, match="settings"):  # a finished run is not another one's result
        train(load_config(base={**SETTINGS, "train.epochs": 2}), data, tmp_path / "run", resume=True)
    (tmp_path / "run" / "DONE").unlink()
    with pytest.raises(TrainingError, match="settings"):
        train(load_config(base={**SETTINGS, "train.epochs": 1, "train.lr": 0.02}), data, tmp_path / "run", resume=True)


def test_a_finished_run_of_trees_keeps_its_log(data, tmp_path):
    pytest.importorskip("xgboost")
    config = load_config(base={"model.name": "gbdt", "model.rounds": 5})
    train(config, data, tmp_path / "run")
    log = (tmp_path / "run" / "log.jsonl").read_text()
    train(config, data, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_text() == log != ""


def test_killed_while_the_first_file_was_written(data, tmp_path):
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".identity.json.99999999.tmp.json").write_text("{")
    train(load_config(base={**SETTINGS, "train.epochs": 1}), data, tmp_path / "killed", resume=True)
    assert not list((tmp_path / "killed").glob(".*"))


def test_killed_before_anything_but_the_identity_was_written(data, tmp_path):
    config = load_config(base={**SETTINGS, "train.epochs": 1})
    train(config, data, tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "identity.json").write_bytes((tmp_path / "whole" / "identity.json").read_bytes())
    train(config, data, tmp_path / "killed", resume=True)
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "killed"))
    assert (tmp_path / "killed" / "config.toml").exists()


def test_a_run_is_known_again_when_settings_were_added_since(data, tmp_path):
    config = load_config(base={**SETTINGS, "train.epochs": 1})
    report = train(config, data, tmp_path / "run")
    known = tmp_path / "run" / "identity.json"
    identity = json.loads(known.read_text())
    older = "\n".join(line for line in identity["config"].splitlines() if not line.startswith("checkpoints ="))
    assert older != identity["config"].strip()
    known.write_text(json.dumps({**identity, "config": older}))
    (tmp_path / "run" / "DONE").write_text("")  # as older versions left it
    assert train(config, data, tmp_path / "run", resume=True) == report
    known.write_text(json.dumps({**identity, "config": f"{older}\nunheard_of = 1"}))
    with pytest.raises(TrainingError, match="own settings"):
        train(config, data, tmp_path / "run", resume=True)
