"""Several workers give the one-process run: shares, losses, metrics, resume on other numbers of workers, kills, stalls.

Starting processes is most of the time here, so one launch answers for many tests.
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fieldwise import cli
from fieldwise.bundle.scoring import score
from fieldwise.config.errors import ConfigError, FieldwiseError, TrainingError, WorkerLost
from fieldwise.config.settings import Config, TrainSettings, load_config
from fieldwise.data.batches import Batch, rows_of_batches, share, steps_per_epoch
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.schema import Layout
from fieldwise.data.world import World
from fieldwise.evaluation import metrics
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.loop import start, train
from fieldwise.train.network import Network
from fieldwise.train.steps import SharedStep, Step
from fieldwise.train.steps.shared import Share
from tests.once import once, shared_folder

LAYOUT = Layout.of([40, 300, 2, 25])
DEEP = {"dim": 3, "hidden": (8,), "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "lr": {},
    "fm": {"dim": 5},
    "ipnn": DEEP,
    "pin": {**DEEP, "subnet": (4, 2)},
    "fcn": {"dim": 4, "exponential": 1, "linear": 1, "dropout": 0.0},  # whose loss has factors of the whole batch
    "deepfm": {**DEEP, "members": 3},
}
# Every way in which a gradient is made, moved or cut.
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"l2": 0.1},
    "sum, clip": {"l2": 1e-3, "l2_reduction": "sum", "clip": 0.1},
    "whole tables, dense": {"l2_full": 1e-3, "sparse_mode": "dense"},
    "adagrad": {"optimizer": "adagrad", "l2": 0.1},
    "rows clipped": {"l2": 0.1, "row_clip": 1e-2, "row_clip_least": 1e-5, "dense_lr": 0.05, "clip": 1.0},
    "rows clipped, sum, tables": {"l2": 1e-3, "l2_reduction": "sum", "l2_full": 1e-3, "row_clip": 1e-2},
}
TRAINING = {"model.name": "pin", "model.dim": 4, "model.subnet": (4, 2), "model.hidden": (8,), "model.dropout": 0.0}
TRAINING |= {"train.epochs": 2, "train.batch_size": 100, "train.lr": 0.01, "train.checkpoint_minutes": 0.0}
STOPPED_AT = 7
# `benchmarks/worker_kills.py` kills more often.
KILLS = 4


def batch(number: int, dtype: Any) -> Batch:
    """Rows with many repetitions; their number changes, and every other batch has weights."""
    random = np.random.default_rng(number)
    rows = 101 + number % 3
    ids = (random.random((rows, LAYOUT.fields)) ** 3 * np.array(LAYOUT.sizes)).astype(np.int32)
    weights = random.random(rows).astype(dtype) if number % 2 else None
    return Batch(ids, (random.random(rows) < 0.3).astype(dtype), weights)


def own_share(whole: Batch) -> Share:
    mine = share(np.arange(whole.rows), distributed.rank(), distributed.count())
    weights = None if whole.weights is None else whole.weights[mine]
    return Share(whole.ids[mine], whole.labels[mine], weights, whole.rows)


def curve(kind: type[Step], name: str, dtype: torch.dtype, settings: dict[str, Any]) -> list[float]:
    """The losses of some steps."""
    torch.manual_seed(0)
    model = build(name, LAYOUT, MODELS[name])
    assert isinstance(model, Model)
    step = kind(model.to(dtype).train(), Config(name, MODELS[name], TrainSettings(lr=0.02, **settings)), 100)
    numbers = np.float64 if dtype == torch.float64 else np.float32
    rows = [batch(number, numbers) for number in range(12)]
    return [step(own_share(each) if kind is SharedStep else each, number) for number, each in enumerate(rows)]


def curves(kind: type[Step]) -> dict[str, list[float]]:
    found = {}
    for name in MODELS:
        for dtype in (torch.float32, torch.float64):
            for title, settings in SETTINGS.items():
                found[f"{name} {dtype} {title}"] = curve(kind, name, dtype, settings)
    return found


class Killed(Exception):
    pass


def train_until(
    data: Path, out: Path, step: int, settings: dict[str, Any] | None = None, resume: bool = False
) -> Network:
    """A run that ends without a word before that step, on every worker."""
    run = start(load_config(base=settings or TRAINING), Dataset.open(data), out, resume)
    assert isinstance(run, Network)
    original = run.step.run

    def stops(found: Any, number: int) -> list[float]:
        if number == step:
            raise Killed
        return original(found, number)

    run.step.run = stops  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run.fit(run_progress())
    run.close()  # as the end of the process would
    distributed.wait()
    return run


def run_progress() -> Any:
    from fieldwise.config.progress import Progress

    return Progress()


def two_workers(data: Path, folder: Path) -> dict[str, Any]:
    """All that the tests below ask of two workers."""
    with distributed.joined(120):
        assert distributed.count() == 2
        found: dict[str, Any] = {"curves": curves(SharedStep)}
        torch.manual_seed(3)
        model = build("pin", LAYOUT, MODELS["pin"])
        assert isinstance(model, Model)
        ids = batch(0, np.float32).ids
        found["scores"] = [score(model, ids), distributed.score_together(model, ids)]
        found["refused"] = refusals(data, folder)
        train(load_config(base=TRAINING), data, folder / "two")
        train(load_config(base={**TRAINING, "model.dropout": 0.3}), data, folder / "dropout")
        train(load_config(base=TRAINING), data, folder / "1-2", resume=True)
        for name in ("2-1", "2-3"):
            train_until(data, folder / name, STOPPED_AT)
        train_until(data, folder / "dropout resumed", STOPPED_AT, {**TRAINING, "model.dropout": 0.3})
        train(load_config(base={**TRAINING, "model.dropout": 0.3}), data, folder / "dropout resumed", resume=True)
        found["mistake"] = mistake(data, folder / "two")
        return found


def refusals(data: Path, folder: Path) -> list[str]:
    """What training with settings that several workers cannot have says."""
    found = []
    for number, changes in enumerate(({"model.norm": "batch"}, {"train.batch_size": 1})):
        with pytest.raises(ConfigError) as error:
            train(load_config(base={**TRAINING, **changes}), data, folder / f"refused-{number}")
        found.append(str(error.value))
    return found


def mistake(data: Path, taken: Path) -> str:
    """A folder that holds a run already: the first worker finds it, all raise it."""
    with pytest.raises(TrainingError) as error:
        train(load_config(base=TRAINING), data, taken)
    return str(error.value)


def three_workers(data: Path, folder: Path) -> None:
    with distributed.joined(120):
        train(load_config(base=TRAINING), data, folder / "2-3", resume=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "distributed")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return once(folder, "prepared", lambda: prepared(folder / "data"))


def prepared(folder: Path) -> Path:
    log = World("demo").log(1250).table
    prepare({"train": lambda: iter([log])}, folder, "click")
    return folder


@pytest.fixture(scope="module")
def one(data: Path, folder: Path) -> Path:
    """What one process does: a whole run, and one that others go on with."""
    return once(folder, "alone", lambda: alone(data, folder))


def alone(data: Path, folder: Path) -> Path:
    train(load_config(base=TRAINING), data, folder / "one")
    train_until(data, folder / "1-2", STOPPED_AT)
    return folder / "one"


@pytest.fixture(scope="module")
def two(data: Path, folder: Path, one: Path) -> dict[str, Any]:
    return once(folder, "found", lambda: distributed.launch(two_workers, (data, folder), workers=2, restarts=0))


def losses(run: Path) -> dict[str, list[float]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    trained = [line["loss"] for line in lines if line["event"] == "train"]
    return {"train": trained, "valid": [line["log_loss"] for line in lines if line["event"] == "valid"]}


def assert_same_losses(run: Path, other: Path) -> None:
    for kind, values in losses(other).items():
        assert len(values) > 3
        np.testing.assert_allclose(losses(run)[kind], values, rtol=1e-5, err_msg=f"{run.name}: {kind}")


def assert_same_bits(run: Path, other: Path) -> None:
    assert losses(run) == losses(other)
    weights, others = (load_file(each / "bundle" / "weights.safetensors") for each in (run, other))
    assert all(weights[name].equal(others[name]) for name in others)


@pytest.mark.parametrize("workers", range(1, 8))
def test_shares_are_the_batch_and_a_resume_goes_on_at_the_row(workers: int) -> None:
    rows, size = 1013, 50
    for epoch in (0, 1):
        whole = list(rows_of_batches(rows, size, 5, epoch, shuffle_rows=300))
        assert len(whole) == steps_per_epoch(rows, size)
        seen = []
        for number, own in enumerate(whole):
            shares = [share(own, rank, workers) for rank in range(workers)]
            assert sum(map(len, shares)) == len(own)
            assert set(np.concatenate(shares).tolist()) == set(own.tolist())
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            seen += np.concatenate(shares).tolist()
            # State is the step alone: any number of workers goes on with the same rows.
            if number == 7:
                rest = rows_of_batches(rows, size, 5, epoch, start=8, shuffle_rows=300)
                assert all(np.array_equal(a, b) for a, b in zip(rest, whole[8:], strict=True))
        assert sorted(seen) == list(range(rows))
    again = next(rows_of_batches(rows, size, 5, 1, shuffle_rows=300))
    assert not np.array_equal(again, next(rows_of_batches(rows, size, 5, 0, shuffle_rows=300)))


def test_losses_of_two_workers_are_those_of_one(two: dict[str, Any]) -> None:
    expected = curves(Step)
    assert two["curves"].keys() == expected.keys()
    for title, values in expected.items():
        tolerance = 1e-10 if "float64" in title else 1e-5
        np.testing.assert_allclose(two["curves"][title], values, rtol=tolerance, err_msg=title)
        assert values[-1] < values[0] or "clip" in title, title


def test_runs_of_two_workers_are_those_of_one(one: Path, two: dict[str, Any], folder: Path) -> None:
    assert_same_losses(folder / "two", one)
    files = [{path.relative_to(run).as_posix() for path in run.rglob("*")} for run in (one, folder / "two")]
    assert files[0] == files[1]


def test_metrics_of_shares_are_those_of_all_rows(two: dict[str, Any]) -> None:
    alone, together = two["scores"]
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    labels = batch(0, np.float32).labels
    found = metrics.evaluate(labels, metrics.sigmoid(together))
    ranking = metrics.Ranking()
    for rank in range(2):
        ranking.merge(metrics.Ranking().add(labels[rank::2], metrics.sigmoid(together[rank::2])))
    assert metrics.measure(ranking) == found


def test_another_number_of_workers_goes_on(data: Path, one: Path, two: dict[str, Any], folder: Path) -> None:
    train(load_config(base=TRAINING), data, folder / "2-1", resume=True)
    distributed.launch(three_workers, (data, folder), workers=3, restarts=0)
    for name in ("1-2", "2-1", "2-3"):
        assert_same_losses(folder / name, one)


def test_dropout_is_drawn_again_alike(two: dict[str, Any], folder: Path) -> None:
    assert_same_bits(folder / "dropout resumed", folder / "dropout")
    assert losses(folder / "dropout") != losses(folder / "two")


def test_refusals_are_one_line(two: dict[str, Any]) -> None:
    assert "batch norm needs the whole batch in one process" in two["refused"][0]
    assert "a batch needs a row for each of 2 workers, found 1 rows" in two["refused"][1]
    assert "already holds a finished run; choose another --out" in two["mistake"]


def often_killed(data: Path, out: Path, moments: list[tuple[int, int]]) -> None:
    """In each try the worker that is named kills itself, as nobody can clean up after, before that step."""
    os.environ["FIELDWISE_NUMBA"] = "0"  # compiling in every try would take longer than the run
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    original = SharedStep.run

    def dies(step: SharedStep, found: Any, number: int) -> list[float]:
        if attempt < len(moments) and moments[attempt] == (step.rank, number):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(step, found, number)

    SharedStep.run = dies  # type: ignore[method-assign]
    with distributed.joined(120):
        train(load_config(base=TRAINING), data, out)


def test_killed_workers_are_started_again_and_lose_nothing(data: Path, folder: Path) -> None:
    random = np.random.default_rng(4)
    steps = sorted(random.choice(np.arange(1, 19), size=KILLS, replace=False).tolist())
    moments = [(int(random.integers(2)), step) for step in steps]
    distributed.launch(often_killed, (data, folder / "spared", []), workers=2, restarts=0)
    distributed.launch(often_killed, (data, folder / "killed", moments), workers=2, restarts=KILLS)
    assert_same_bits(folder / "killed", folder / "spared")


def test_the_dead_are_not_heard_in_a_store_that_outlives_them() -> None:
    store = torch.distributed.HashStore()
    for key, value in {"ask/1": "old", "answer/1": "old dead", "ask/2": "older", "dead/1": "heard"}.items():
        store.set(key, value)
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(distributed._agreed_name, store, rank, 3, timedelta(seconds=60)) for rank in (2, 1, 0)]
        names = {job.result() for job in jobs}
    assert len(names) == 1
    assert "dead" not in names
    with pytest.raises(WorkerLost, match="not all of 4 workers came"):
        distributed._agreed_name(store, 0, 4, timedelta(seconds=0.1))


def stalls() -> None:
    with distributed.joined(2):
        if not distributed.first():
            time.sleep(900)
        distributed.wait()


def test_a_worker_that_stalls_is_noticed() -> None:
    began = time.monotonic()
    with pytest.raises(TrainingError, match="did not answer for 2 s") as error:
        distributed.launch(stalls, (), workers=2, restarts=0)
    assert "\n" not in str(error.value)
    assert time.monotonic() - began < 800  # it would have slept for 900


def test_the_command_line(data: Path, folder: Path, one: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set={k}={','.join(map(str, v)) + ',' if isinstance(v, tuple) else v}" for k, v in TRAINING.items()]
    command = ["train", str(data), *settings, "--workers", "2", "--out", str(folder / "command")]
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--json"])
    assert end.value.code == 0
    assert json.loads(capfd.readouterr().out)["model"] == "pin"
    assert_same_losses(folder / "command", one)


def test_the_command_line_refuses(data: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", str(data), "--workers", "0", "--out", str(folder / "none")])
    assert end.value.code == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_alone_there_is_nobody_to_tell() -> None:
    assert distributed.count() == 1
    assert distributed.first()
    assert distributed.from_first(lambda: 3) == 3
    with pytest.raises(FieldwiseError):
        distributed.from_first(lambda: build("nothing", LAYOUT, {}))
