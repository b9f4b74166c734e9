"""Tuning: the recipe is the best trial, nothing is lost to a kill, and test rows stay unseen."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fieldwise import cli, models
from fieldwise.config.errors import TrainingError
from fieldwise.config.settings import load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.world import World
from fieldwise.experiments import tune as room
from fieldwise.experiments.tune import Search, tune
from fieldwise.reporting import console
from fieldwise.reporting.console import TuningBar
from fieldwise.train.loop import train
from fieldwise.train.state import State

FAST = {"model.name": "fm", "train.epochs": 2, "train.batch_size": 100}
HELD = list(FAST)[1:]


def config(**changes):
    return load_config(base={**FAST, **{key.replace("__", "."): value for key, value in changes.items()}})


def rows_of(out):
    """trials.csv without the clock."""
    with (out / "trials.csv").open(encoding="utf-8", newline="") as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


def least_loss(run):
    """The best validation log loss that a run's log tells, before calibration."""
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return min(event["log_loss"] for event in events if event["event"] == "valid")


def cli_run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


class FakeRun:
    """A run that trains nothing: five epochs of two evaluations, at the losses that `curve` says."""

    def __init__(self, config, folder, curve):
        self.config, self.settings = config, config.train
        self.part = SimpleNamespace(rows=100)
        self.state = State()
        self.curve = curve
        self.number = int(folder.name) if folder.name.isdigit() else None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def close(self):
        pass

    def fit(self, progress):
        progress.start(100, 5, 0)
        for place in range(1, 11):
            progress.step(50, 1.0, 1)
            loss = self.curve(self.number, place, self.config)
            self.state.best_loss = min(self.state.best_loss, loss)
            progress.evaluated({"rows": place * 50, "log_loss": loss})


@pytest.fixture
def fake(monkeypatch):
    """Replaces training by a curve: number of the trial, place, config -> validation log loss."""

    def use(curve):
        monkeypatch.setattr(room, "start", lambda config, dataset, folder, resume=False: FakeRun(config, folder, curve))

    return use


def test_the_recipe_trains_to_the_best_trials_loss(trained, tmp_path, capsys):
    settings = [f"--set={key}={FAST[key]}" for key in HELD]
    study = tmp_path / "study"
    command = ["tune", trained.data, "--model", "fm", *settings, "--trials", 4, "--out", study]
    assert cli_run(*command, "--seed", 3, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"] == {"done": 4}
    assert found["stopped"] == ""
    rows = rows_of(study)
    losses = [float(row["log_loss"]) for row in rows]
    assert found["best"][0]["log_loss"] == min(losses)
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3"]
    assert found["recipe"] == str(study / "recipe.toml")
    assert cli_run("train", trained.data, "--config", found["recipe"], "--out", tmp_path / "run") == 0
    assert least_loss(tmp_path / "run") == min(losses)
    train(load_config(base={**FAST, "seed": 3}), trained.data, tmp_path / "plain")
    assert least_loss(tmp_path / "plain") == losses[0]  # the first trial is the defaults
    recipe = (study / "recipe.toml").read_text()
    assert recipe.startswith("# Found by `fieldwise tune` (trial ")
    assert f"validation log loss {min(losses):.6f}" in recipe.splitlines()[0]
    assert load_config(study / "recipe.toml").options.keys() == models.options("fm").keys()
    assert {path.name for path in study.iterdir()} == {
        "identity.json",
        "recipe.toml",
        "study.lock",
        "study.log",
        "trials.csv",
    }


def test_a_recipe_is_the_first_trial(trained, tmp_path):
    base = config(model__dim=5, train__lr=0.03, train__l2=0.0)
    tune(base, trained.data, tmp_path / "study", 1)
    train(base, trained.data, tmp_path / "run")
    (row,) = rows_of(tmp_path / "study")
    assert float(row["log_loss"]) == least_loss(tmp_path / "run")
    assert (row["model.dim"], row["train.lr"]) == ("5", "0.03")
    assert load_config(tmp_path / "study" / "recipe.toml").train == base.train


def test_trees(trained, tmp_path):
    fast = {"model.name": "gbdt", "model.rounds": 15, "model.threads": 1}
    found = tune(load_config(base=fast), trained.data, tmp_path / "study", 4, held=list(fast))
    assert sum(found["trials"].values()) == 4
    train(load_config(tmp_path / "study" / "recipe.toml"), trained.data, tmp_path / "run")
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert found["best"][0]["log_loss"] <= min(json.loads(line)["log_loss"] for line in log)
    again = tune(load_config(tmp_path / "study" / "recipe.toml"), trained.data, tmp_path / "again", 1)
    assert again["best"][0]["log_loss"] == found["best"][0]["log_loss"]


def test_test_rows_are_never_looked_at(trained, tmp_path):
    """Labels turned round and ids that no table has: the study does not notice."""
    poisoned = tmp_path / "data"
    shutil.copytree(trained.data, poisoned)
    for name in ("ids", "labels"):
        values = np.load(poisoned / "test" / f"{name}.npy")
        np.save(poisoned / "test" / f"{name}.npy", values + 10**6 if name == "ids" else 1 - values)
    assert Dataset.open(poisoned).fingerprint == Dataset.open(trained.data).fingerprint
    results = [tune(config(), data, tmp_path / data.name / "study", 3) for data in (trained.data, poisoned)]
    assert results[0]["best"] == results[1]["best"]
    assert "test" not in json.dumps(results[0]["best"])
    assert not any("test" in path.read_text() for path in (tmp_path / "data" / "study").glob("*.*"))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, room.TimeUp])
def test_stopped_anywhere_and_called_again_is_the_same_study(trained, tmp_path, stop):
    tune(config(), trained.data, tmp_path / "whole", 6)

    class Stops(TuningBar):
        left = 7

        def step(self, rows, loss, epoch):
            self.left -= 1
            if not self.left:
                raise stop

    stops = 0
    for _ in range(30):
        bar = Stops("fm", quiet=True)
        try:
            tune(config(), trained.data, tmp_path / "often", 6, bar=bar)
        except (KeyboardInterrupt, TrainingError):  # before the first trial ended
            assert not (tmp_path / "often" / "recipe.toml").exists()
        stops += not bar.left
        if bar.left > 0:
            break
    assert stops >= 3
    assert rows_of(tmp_path / "often") == rows_of(tmp_path / "whole")
    assert (tmp_path / "often" / "recipe.toml").read_text() == (tmp_path / "whole" / "recipe.toml").read_text()


def start_process(data, out, trials, *settings):
    command = [sys.executable, "-m", "fieldwise", "tune", data, "--model", "fm", "--out", out, "--trials", trials]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    chosen = [f"--set={key}={FAST[key]}" for key in HELD] + [f"--set={setting}" for setting in settings]
    return subprocess.Popen(
        [str(part) for part in command] + chosen, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def test_killed_by_the_system_and_called_again(trained, tmp_path):
    """The trial of a killed process is taken up again, its half line dropped; no trial is lost or done twice."""
    long = "train.epochs=15", "train.patience=15"
    whole = config(train__epochs=15, train__patience=15)
    tune(whole, trained.data, tmp_path / "whole", 4, held=[*HELD, "train.patience"])
    process = start_process(trained.data, tmp_path / "killed", 4, *long)
    while process.poll() is None and not (tmp_path / "killed" / "trials" / "2" / "log.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with (tmp_path / "killed" / "study.log").open("ab") as file:
        file.write(b'{"op_code":4,"worker')
    process = start_process(trained.data, tmp_path / "killed", 4, *long)
    error = process.communicate()[1].decode()
    assert process.returncode == 0, error
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
    assert "trial 0" not in error
    assert not (tmp_path / "killed" / "trials").exists()


def test_two_processes_share_a_study(trained, tmp_path):
    processes = [start_process(trained.data, tmp_path / "study", 6) for _ in range(2)]
    errors = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    rows = rows_of(tmp_path / "study")
    assert [int(row["trial"]) for row in rows] == list(range(6))
    assert {row["state"] for row in rows} <= {"done", "pruned"}
    assert len({row["train.lr"] for row in rows}) == 6
    said = [line.split(":")[0] for error in errors for line in error.splitlines() if line.startswith("trial ")]
    assert sorted(said) == [f"trial {number}" for number in range(6)]  # each trial was run by one of them
    best = min(float(row["log_loss"]) for row in rows if row["state"] == "done")
    assert f"{best:.6f}" in (tmp_path / "study" / "recipe.toml").read_text()


def test_a_trial_of_a_living_process_is_left_to_it(trained, tmp_path, fake):
    fake(lambda number, place, config: 1.0 / place)
    elsewhere = Search(config(), trained.data, tmp_path)
    taken = elsewhere.study.take(5)
    tune(config(), trained.data, tmp_path, 3)
    assert {row["trial"]: row["state"] for row in rows_of(tmp_path)} == {"0": "running", "1": "done", "2": "done"}
    elsewhere.run(taken, 3, math.inf, TuningBar("", quiet=True))
    assert elsewhere.study.take(3) is None
    assert elsewhere.study.counts == {"done": 3}


def test_more_trials_and_fewer(trained, tmp_path, fake):
    fake(lambda number, place, config: 1.0 / place)
    assert tune(config(), trained.data, tmp_path, 2)["trials"] == {"done": 2}
    assert tune(config(), trained.data, tmp_path, 5)["trials"] == {"done": 5}
    assert tune(config(), trained.data, tmp_path, 1)["trials"] == {"done": 5}


def test_hopeless_trials_are_stopped_early(trained, tmp_path, fake):
    """Two trials are worse than all others were at their fourth evaluation; the base, worse too, runs to its end."""
    places = []

    def curve(number, place, config):
        places.append((number, place))
        return 3.0 if number in (0, 6, 7) else 1.0 - number / 100 + 1 / place

    fake(curve)
    tune(config(), trained.data, tmp_path, 9)
    states = [row["state"] for row in rows_of(tmp_path)]
    assert states == ["done"] * 6 + ["pruned", "pruned", "done"]
    lengths = [max(place for number, place in places if number == trial) for trial in range(9)]
    assert lengths == [10] * 6 + [4, 4, 10]


def test_trials_that_fail_are_told_and_passed_over(trained, tmp_path, fake):
    def curve(number, place, config):
        if number == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if number == 2:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        if number == 3:
            raise TrainingError("the loss is nan at step 7; lower train.lr")
        return math.nan if number == 4 else 1.0

    fake(curve)
    found = tune(config(), trained.data, tmp_path, 6)
    assert found["trials"] == {"done": 2, "failed": 4}
    errors = [row["error"] for row in rows_of(tmp_path)]
    assert errors[1:3] == ["out of memory"] * 2
    assert errors[3].startswith("the loss is nan")
    assert "never a number" in errors[4]


def test_a_fault_of_ours_is_not_a_failed_trial(trained, tmp_path, fake):
    def curve(number, place, config):
        raise ZeroDivisionError if number == 1 else RuntimeError("shapes")

    fake(lambda number, place, config: curve(number, place, config) if number else 1.0)
    with pytest.raises(ZeroDivisionError):
        tune(config(), trained.data, tmp_path, 3)
    fake(lambda number, place, config: 1.0)
    assert tune(config(), trained.data, tmp_path, 3)["trials"] == {"done": 3}


def test_divergence_is_a_failed_trial_and_nothing_but_failures_an_error(trained, tmp_path):
    settings = {"train__optimizer": "sgd", "train__lr": 1e30}
    with pytest.raises(TrainingError, match=r"none of 2 trials ended well, the last: the loss is nan at step 2; "):
        tune(config(**settings), trained.data, tmp_path / "study", 2, held=["train.lr"])
    assert not (tmp_path / "study" / "recipe.toml").exists()


def test_the_time(trained, tmp_path, fake, monkeypatch):
    """The clock strikes in the middle of the third trial: two are the result, and the third is the next call's."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(room, "time", clock)

    def curve(number, place, config):
        clock.now += 1.0
        return 1.0 / (place + number)

    fake(curve)
    with pytest.raises(TrainingError, match="the time was up before a trial ended; the same command"):
        tune(config(), trained.data, tmp_path, 9, seconds=5)
    found = tune(config(), trained.data, tmp_path, 9, seconds=25)
    assert (found["stopped"], found["trials"]) == ("time", {"done": 2, "waiting": 1})
    assert found["best"][0]["trial"] == 1
    assert tune(config(), trained.data, tmp_path, 3)["trials"] == {"done": 3}


def test_what_mattered(trained, tmp_path, fake, capsys):
    fake(lambda number, place, config: 1.0 + abs(math.log(config.train.lr / 1e-3)))
    found = tune(config(), trained.data, tmp_path / "study", 25)
    assert max(found["importance"], key=found["importance"].get) == "train.lr"
    assert found["best"][0]["log_loss"] == min(float(r["log_loss"]) for r in rows_of(tmp_path / "study"))
    assert [row["log_loss"] for row in found["best"]] == sorted(row["log_loss"] for row in found["best"])
    assert len(found["best"]) == 5
    console.print_study(found)
    printed = capsys.readouterr().out
    assert "what mattered: train.lr" in printed
    assert "recipe: " in printed


def test_ctrl_c_prints_the_best_so_far(trained, tmp_path, fake, capsys):
    def curve(number, place, config):
        if number == 2:
            raise KeyboardInterrupt
        return 1.0

    fake(curve)
    command = ["tune", trained.data, "--model", "fm", "--out", tmp_path / "study", "--time", "2h"]
    assert cli_run(*command, "--trials", 5) == 130
    printed = capsys.readouterr()
    assert f"next: fieldwise train {trained.data} --config {tmp_path / 'study' / 'recipe.toml'}" in printed.out
    assert "2 done, 1 waiting" in printed.out
    assert "`tune` go on with the same command" in printed.err
    assert (tmp_path / "study" / "recipe.toml").exists()


def test_little_data(tmp_path):
    """Twelve training rows, one evaluation: whatever comes, it is no crash."""
    log = World("demo").log(20).table
    prepare({"train": lambda: iter([log])}, tmp_path / "data", "click", split=Split((0.6, 0.4, 0.0), seed=1))
    base = {"model.name": "pin", "model.hidden": (4,), "model.subnet": (3, 2), "model.dim": 2, "train.epochs": 1}
    found = tune(load_config(base=base), tmp_path / "data", tmp_path / "study", 4, held=[*base, "train.batch_size"])
    assert sum(found["trials"].values()) == 4


def test_a_first_trial_that_is_too_large_for_memory_is_a_failed_one(trained, tmp_path):
    with pytest.raises(
        TrainingError, match=r"none of 1 trials ended well, the last: fm has .* lower model.dim \(10000"
    ):
        tune(config(model__dim=10**9), trained.data, tmp_path / "study", 1, held=["model.dim"])
