"""Cut tables give the run of one process: losses, resume with other numbers of workers, kills, stalls, the bundle.

Starting processes is most of the time here, so one launch answers for many tests.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fieldwise import cli
from fieldwise.bundle.predictor import Predictor
from fieldwise.bundle.scoring import score
from fieldwise.config.errors import ConfigError, TrainingError
from fieldwise.config.settings import Config, TrainSettings, load_config
from fieldwise.data.encode.prepare import prepare
from fieldwise.data.schema import Layout
from fieldwise.data.world import World
from fieldwise.models import build
from fieldwise.nn.model import Model
from fieldwise.train import distributed
from fieldwise.train.loop import train
from fieldwise.train.sharded.sharded_model import build as cut_model
from fieldwise.train.state import Plan
from fieldwise.train.steps import ShardedStep, Step, tables
from tests import test_distributed as plain
from tests.once import once, shared_folder

MODELS = plain.MODELS | {"fnn": {**plain.DEEP, "adaptive": 1.0}, "poly2": {"buckets": 64}}
# Every optimiser and every mode of Adam, and what cuts or adds to gradients.
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"l2": 0.1, "schedule": "cosine", "warmup": 2},
    "lazy, hat": {"sparse_mode": "lazy", "eps_mode": "hat"},
    "dense": {"sparse_mode": "dense", "l2_full": 1e-3},
    "paper, whole tables": {"l2_full": 1e-3, "clip": 0.1},
    "adagrad": {"optimizer": "adagrad", "l2": 0.1, "l2_reduction": "sum", "clip": 0.1},
    "sgd": {"optimizer": "sgd", "lr": 0.5, "l2": 1e-3},
    "ftrl": {"optimizer": "ftrl", "lr": 0.1, "ftrl_l1": 0.01},
}
# Models with one table or several, of one size or of different ones, get the first alone.
ALL_SETTINGS = ("fm", "pin")
TRAINING = plain.TRAINING | {"train.tables": "sharded"}
TRAINING |= {"train.average": 0.5, "train.checkpoints": 2}
CONTINUED = TRAINING | {"train.clip": 0.5}
FM = {key: value for key, value in TRAINING.items() if key.startswith("train.")} | {"model.name": "fm", "model.dim": 4}
PRELOAD = (
    "fieldwise.train.network",
    "fieldwise.train.sharded.store",
    "fieldwise.optim.adam_loops",
    "tests.test_distributed",
)


def curve(name: str, dtype: torch.dtype, chosen: dict[str, Any], sharded: bool) -> tuple[list[float], Step]:
    """The losses of some steps, and the step."""
    torch.manual_seed(0)
    options = MODELS[name]
    config = Config(name, options, TrainSettings(**{"lr": 0.02, **chosen}))

    def make() -> Model:
        made = build(name, plain.LAYOUT, options)
        assert isinstance(made, Model)
        return made

    step: Step
    if sharded:
        cut = cut_model(make, config.train, torch.device("cpu"))
        _started(cut.model.double() if dtype == torch.float64 else cut.model)
        step = ShardedStep(cut, config, 100)
    else:
        step = Step(_started(make().to(dtype)), config, 100)
    numbers = np.float64 if dtype == torch.float64 else np.float32
    batches = [plain.batch(number, numbers) for number in range(10)]
    own = [plain.own_share(each) if sharded else each for each in batches]
    before = [value.clone() for value in cut.live.values()] if sharded else []
    losses = [step(each, number) for number, each in enumerate(own)]
    if sharded:
        moved = [bool((value != old).any()) for value, old in zip(cut.live.values(), before, strict=True)]
        assert all(moved), f"{name}: {[key for key, any_ in zip(cut.live, moved, strict=True) if not any_]} never moved"
    return losses, step


def rows_of(step: Step) -> dict[str, Any]:
    """The weights, both moments and the last step of each row of an FM's tables, whole."""
    parts = step.cut.rows if isinstance(step, ShardedStep) else dict(step.model.named_parameters())
    found = {}
    for name in ("embedding.tables.0.weight", "linear.weights.weight"):
        state = {"weight": parts[name].detach(), **step.optimizer.whole_state(parts[name], by_rows=True)}
        for key, own in state.items():
            if isinstance(step, ShardedStep):
                own = distributed.gathered(own, [size for (size,) in distributed.counts(torch.tensor([len(own)]))])
            found[f"{key} of {name}"] = own.numpy()
    return found


def _started(model: Model) -> Model:
    for table in tables(model):
        table.start("normal", 0.1)
    return model.train()


def curves(sharded: bool, names: Iterable[str] = MODELS) -> dict[str, Any]:
    found = {}
    for name in names:
        for title in SETTINGS if name in ALL_SETTINGS else ["paper"]:
            for dtype in (torch.float32, torch.float64):
                found[f"{name} {dtype} {title}"] = curve(name, dtype, SETTINGS[title], sharded)[0]
        if name == "fm":
            found["rows"] = rows_of(curve(name, torch.float64, {}, sharded)[1])
    return found


def scores_of_sets(sharded: bool) -> Any:
    """Logits of fields that are a category, a set and a number between two anchors, for more rows than go round."""
    layout = Layout((6, 9, 12), (1, 3, 3), ordered=(2,))
    random = np.random.default_rng(2)
    first, members, lower = (random.integers(0, size, (7, 1)) for size in (6, 9, 11))
    more = np.where(random.random((7, 2)) < 0.5, -1, random.integers(0, 9, (7, 2)))
    ids = np.hstack([first, members, more, lower, lower + (random.random((7, 2)) < 0.5)]).astype(np.int32)

    def make() -> Model:
        made = build("fnn", layout, plain.DEEP)
        assert isinstance(made, Model)
        return made

    torch.manual_seed(1)
    model = cut_model(make, TrainSettings(), torch.device("cpu")).model if sharded else make()
    return (distributed.score_together if sharded else score)(_started(model), ids)


def two_workers(data: Path, folder: Path) -> dict[str, Any]:
    """All that the tests below ask of two workers."""
    with distributed.joined(120):
        found: dict[str, Any] = {"curves": curves(sharded=True), "sets": scores_of_sets(sharded=True)}
        found["narrow"] = curve("fm", torch.float32, {"l2": 0.1, "weights_precision": "bf16"}, sharded=True)[0]
        train(load_config(base=TRAINING), data, folder / "two")
        train(load_config(base=TRAINING), data, folder / "1-2", resume=True)
        run_with_clocks_apart(data, folder / "clocks")
        train(load_config(base={**CONTINUED, "train.continue_from": str(folder / "one")}), data, folder / "on")
        train(load_config(base=FM), data, folder / "fm")
        distributed.wait()  # until the first worker has written the bundle
        train(load_config(base={**TRAINING, "train.init_from": str(folder / "fm")}), data, folder / "from fm")
        for name in ("2-1", "2-1-3"):
            plain.train_until(data, folder / name, plain.STOPPED_AT, TRAINING)
        found["kept"] = sorted(path.name for path in (folder / "2-1" / "checkpoint").iterdir())
        found["refused"] = refusals(data, folder)
        return found


def run_with_clocks_apart(data: Path, out: Path) -> None:
    """For the second worker a checkpoint is always due, for the first never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "_late", lambda plan: distributed.rank() > 0)
        train(load_config(base={**TRAINING, "train.checkpoint_minutes": 5.0}), data, out)


def refusals(data: Path, folder: Path) -> list[str]:
    bf16 = {"train.weights_precision": "bf16"}
    wrong = ({"model.norm": "batch"}, {**bf16, "train.l2_full": 0.1}, {**bf16, "train.tables": "replicated"})
    found = []
    for number, changes in enumerate(wrong):
        with pytest.raises(ConfigError) as error:
            train(load_config(base={**TRAINING, **changes}), data, folder / f"refused-{number}")
        found.append(str(error.value))
    return found


def three_workers(data: Path, out: Path) -> dict[str, Any]:
    """All that the tests below ask of three workers."""
    with distributed.joined(120):
        train(load_config(base=TRAINING), data, out, resume=True)
        return curves(sharded=True, names=["fm"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory, "sharded")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return once(folder, "prepared", lambda: plain.prepared(folder / "data"))


@pytest.fixture(scope="module")
def one(data: Path, folder: Path) -> Path:
    """The run of one process, its tables whole."""
    config = load_config(base={**TRAINING, "train.tables": "replicated"})
    once(folder, "alone", lambda: train(config, data, folder / "one"))
    return folder / "one"


@pytest.fixture(scope="module")
def two(data: Path, folder: Path, one: Path) -> dict[str, Any]:
    return once(folder, "found", lambda: one_two_and_three(data, folder))


def one_two_and_three(data: Path, folder: Path) -> dict[str, Any]:
    with a_group_of_one():
        plain.train_until(data, folder / "1-2", plain.STOPPED_AT, TRAINING).store.wait()
    found = distributed.launch(two_workers, (data, folder), 2, 0, PRELOAD)
    with a_group_of_one():
        plain.train_until(data, folder / "2-1-3", plain.STOPPED_AT + 6, TRAINING, resume=True).store.wait()
    found["curves of three"] = distributed.launch(three_workers, (data, folder / "2-1-3"), 3, 0, PRELOAD)
    return found


@contextmanager
def a_group_of_one() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_losses_are_those_of_one_process(two: dict[str, Any]) -> None:
    expected = curves(sharded=False)
    assert_same_curves(two["curves"], expected)
    assert_same_curves(two["curves of three"], {title: expected[title] for title in two["curves of three"]})
    assert all(values[-1] < values[0] for title, values in expected.items() if title != "rows")


def assert_same_curves(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for title, values in expected.items():
        if title != "rows":
            np.testing.assert_allclose(found[title], values, rtol=1e-10 if "64" in title else 1e-5, err_msg=title)
    # Both moments of each row, and its last step, which some rows had long ago.
    assert found["rows"].keys() == expected["rows"].keys()
    for title, values in expected["rows"].items():
        np.testing.assert_allclose(found["rows"][title], values, rtol=1e-9, atol=1e-12, err_msg=title)
    assert len(set(expected["rows"]["last of linear.weights.weight"].tolist())) > 5


def test_narrow_rows_travel(two: dict[str, Any]) -> None:
    expected = curve("fm", torch.float32, {"l2": 0.1}, sharded=False)[0]
    np.testing.assert_allclose(two["narrow"], expected, rtol=2e-3)
    assert two["narrow"] != pytest.approx(expected, rel=1e-6)


def test_sets_and_numbers_are_looked_up(two: dict[str, Any]) -> None:
    np.testing.assert_allclose(two["sets"], scores_of_sets(sharded=False), rtol=1e-5)


def test_a_run_is_that_of_one_process_and_leaves_its_bundle(two: dict[str, Any], one: Path, folder: Path) -> None:
    run = folder / "two"
    plain.assert_same_losses(run, one)
    weights, others = (load_file(each / "bundle" / "weights.safetensors") for each in (run, one))
    assert weights.keys() == others.keys()
    for name, value in others.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    rows = World("demo").log(50).table.drop_columns("click").to_pylist()
    scores, expected = (Predictor.load(each).predict(rows) for each in (run, one))
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    facts, other_facts = (json.loads((each / "report.json").read_text()) for each in (run, one))
    assert facts["parameters"] == other_facts["parameters"]
    assert facts["test"]["log_loss"] == pytest.approx(other_facts["test"]["log_loss"], rel=1e-5)
    left = {path.name for path in run.iterdir()}
    assert left == {path.name for path in one.iterdir()} - {"checkpoint"}


def test_another_number_of_workers_goes_on(
    two: dict[str, Any], one: Path, data: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # One worker of the command line, which fills the settings in that it is not told.
    chosen = {key: value for key, value in TRAINING.items() if key != "train.tables"}
    settings = [f"--set={k}={','.join(map(str, v)) + ',' if isinstance(v, tuple) else v}" for k, v in chosen.items()]
    with pytest.raises(SystemExit) as end:
        cli.main(["train", str(data), *settings, "--tables", "sharded", "--resume", "--out", str(folder / "2-1")])
    assert end.value.code == 0, capfd.readouterr().err
    for name in ("1-2", "2-1", "2-1-3"):
        plain.assert_same_losses(folder / name, one)


def test_a_run_goes_on_with_the_weights_and_the_state_of_one_process(
    two: dict[str, Any], one: Path, data: Path, folder: Path
) -> None:
    changes = {"train.continue_from": str(one), "train.tables": "replicated"}
    train(load_config(base={**CONTINUED, **changes}), data, folder / "on alone")
    plain.assert_same_losses(folder / "on", folder / "on alone")
    lines = [json.loads(line) for line in (folder / "on" / "log.jsonl").read_text().splitlines()]
    assert [line["note"] for line in lines if line["event"] == "continued"] == [""]


def test_a_run_starts_with_the_vectors_of_an_fm(two: dict[str, Any], one: Path, data: Path, folder: Path) -> None:
    changes = {"train.init_from": str(folder / "fm"), "train.tables": "replicated"}
    train(load_config(base={**TRAINING, **changes}), data, folder / "from fm alone")
    plain.assert_same_losses(folder / "from fm", folder / "from fm alone")
    assert plain.losses(folder / "from fm") != plain.losses(one)


NARROW: dict[str, Any] = {"model.name": "fm", "model.dim": 4, "train.tables": "sharded", "train.epochs": 3}
NARROW |= {"train.batch_size": 300, "train.lr": 5e-3, "train.average": 0.5}


def test_narrow_tables_learn_a_planted_world_as_float32_ones_do(folder: Path) -> None:
    """To 0.0005 of log loss and 0.001 of AUC, where an FM learns 0.03 and 0.2; and a run resumes bit for bit."""
    log = World("demo").log(20_000).table
    prepare({"train": lambda: iter([log])}, folder / "planted", "click")
    narrow, found = {**NARROW, "train.weights_precision": "bf16"}, []
    with a_group_of_one():
        for name, settings in (("float32", NARROW), ("bf16", narrow)):
            found.append(train(load_config(base=settings), folder / "planted", folder / name)["test"])
        plain.train_until(folder / "planted", folder / "bf16 again", 90, narrow).store.wait()
        train(load_config(base=narrow), folder / "planted", folder / "bf16 again", resume=True)
    assert found[1]["log_loss"] == pytest.approx(found[0]["log_loss"], abs=0.0005)
    assert found[1]["auc"] == pytest.approx(found[0]["auc"], abs=0.001)
    assert found[1]["auc"] > 0.68
    plain.assert_same_bits(folder / "bf16 again", folder / "bf16")
    weights = load_file(folder / "bf16" / "bundle" / "weights.safetensors")["embedding.tables.0.weight"]
    assert weights.dtype == torch.float32
    assert weights.equal(weights.bfloat16().float())
    assert not weights.equal(
        load_file(folder / "float32" / "bundle" / "weights.safetensors")["embedding.tables.0.weight"]
    )


def test_workers_agree_when_a_checkpoint_is_due(two: dict[str, Any], one: Path, folder: Path) -> None:
    plain.assert_same_losses(folder / "clocks", one)


def test_the_last_checkpoints_are_kept_and_whole(two: dict[str, Any]) -> None:
    # One was still being written when the run was stopped, or not; the two before it, and that of the best step, stay.
    kept = [int(name) for name in two["kept"] if not name.startswith(".")]
    assert kept[-1] in (plain.STOPPED_AT - 1, plain.STOPPED_AT)
    assert kept[-2] == kept[-1] - 1
    assert len(kept) <= 3


def test_refusals_are_one_line(two: dict[str, Any]) -> None:
    norm, penalty, whole = two["refused"]
    assert "batch norm needs the whole batch" in norm
    assert "train.l2_full=0 with train.weights_precision=bf16, found 0.1; or take" in penalty
    assert "train.weights_precision=bf16 needs --tables sharded" in whole
    assert not any("\n" in each for each in two["refused"])


def often_killed(data: Path, out: Path, moments: list[tuple[int, int]]) -> None:
    """In each try the worker that is named kills itself, as nobody can clean up after, before that step."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    original = ShardedStep.run

    def dies(step: ShardedStep, found: Any, number: int) -> list[float]:
        if attempt < len(moments) and moments[attempt] == (step.rank, number):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(step, found, number)

    ShardedStep.run = dies  # type: ignore[method-assign,assignment]
    with distributed.joined(120):
        train(load_config(base=TRAINING), data, out)


def test_a_run_that_lost_workers_lost_nothing(two: dict[str, Any], data: Path, folder: Path) -> None:
    random = np.random.default_rng(4)
    steps = sorted(random.choice(np.arange(1, 19), size=plain.KILLS, replace=False).tolist())
    moments = [(int(random.integers(2)), step) for step in steps]
    distributed.launch(often_killed, (data, folder / "killed", moments), 2, plain.KILLS, PRELOAD)
    plain.assert_same_bits(folder / "killed", folder / "two")


def stalls(data: Path, out: Path) -> None:
    """The second worker sleeps in a step."""
    original = ShardedStep.run

    def sleeps(step: ShardedStep, found: Any, number: int) -> list[float]:
        if step.rank and number == 2:
            time.sleep(900)
        return original(step, found, number)

    ShardedStep.run = sleeps  # type: ignore[method-assign,assignment]
    with distributed.joined(5):
        train(load_config(base=TRAINING), data, out)


def test_a_worker_that_stalls_in_a_step_is_noticed(data: Path, folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(TrainingError, match="did not answer for 5 s") as error:
        distributed.launch(stalls, (data, folder / "stalled"), 2, 0, PRELOAD)
    assert "\n" not in str(error.value)
    assert time.monotonic() - began < 800  # it would have slept for 900
