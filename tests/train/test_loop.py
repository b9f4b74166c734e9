import json
import math
import os
import re

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from fieldwise.bundle import bundle
from fieldwise.bundle.scoring import score
from fieldwise.config.errors import BundleError, ConfigError, DataError, FieldwiseError, TrainingError
from fieldwise.config.settings import TrainSettings, load_config
from fieldwise.data.dataset import Dataset
from fieldwise.data.encode.prepare import Split, prepare
from fieldwise.data.world import World
from fieldwise.evaluation import metrics
from fieldwise.models import build
from fieldwise.train.loop import Progress, start, train
from fieldwise.train.network import Network, average
from tests.parts.drawn import drawn


def settings(**overrides):
    return {
        "model.name": "fnn",
        "model.dim": 4,
        "model.hidden": (8,),
        "train.epochs": 3,
        "train.evaluations": 1,
        "train.batch_size": 100,
        "train.lr": 0.01,
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "data"
    log = World("demo").log(1500).table
    prepare({"train": lambda: iter([log])}, folder, "click", split=Split(seed=1))
    return folder


def run(data, out, **overrides):
    return train(load_config(base=settings(**overrides)), data, out)


def test_a_run_leaves_what_it_promises(data, tmp_path):
    report = run(data, tmp_path / "run")
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "log.jsonl", "checkpoint", "bundle", "report.json", "DONE"} <= found
    assert json.loads((tmp_path / "run" / "report.json").read_text()) == report
    assert report["test"]["rows"] == Dataset.open(data).parts["test"].rows
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [e["epoch"] for e in events if e["event"] == "valid"] == [1, 2, 3]
    resolved = load_config(tmp_path / "run" / "config.toml")
    assert resolved.options["norm"] == "layer"
    assert resolved.train.sparse_mode == "paper"


def test_same_seed_same_run_and_another_seed_another(data, tmp_path):
    first = run(data, tmp_path / "a", seed=3)
    again = run(data, tmp_path / "b", seed=3)
    other = run(data, tmp_path / "c", seed=4)
    assert first["test"] == again["test"]
    assert first["test"]["log_loss"] != other["test"]["log_loss"]


def test_an_average_is_what_is_judged_and_kept_and_training_does_not_see_it(data, tmp_path):
    last = run(data, tmp_path / "last", train__epochs=2, train__lr=0.03)
    mean = run(data, tmp_path / "mean", train__epochs=2, train__lr=0.03, train__average=1.0)
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("last", "mean")
    ]
    steps = [[e["loss"] for e in log if e["event"] == "train"] for log in logs]
    assert steps[0] == steps[1]
    assert last["valid"]["log_loss"] != mean["valid"]["log_loss"]
    kept = bundle.load(tmp_path / "mean").model
    part = Dataset.open(data).parts["valid"]
    loss = metrics.log_loss(part.labels, metrics.sigmoid(score(kept, part.ids)))
    assert loss == pytest.approx(min(e["log_loss"] for e in logs[1] if e["event"] == "valid"), abs=1e-12)


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_the_best_evaluation_has_the_scores_of_the_kept_weights(data, tmp_path, mean):
    config = load_config(base=settings(train__epochs=8, train__lr=0.1, train__average=mean))
    reports = []
    for name in ("known", "again"):
        with start(config, Dataset.open(data), tmp_path / name) as begun:
            begun.fit(Progress())
            assert begun.best_logits is not None
            if name == "again":
                begun.best_logits = None
            reports.append(begun.finish())
    assert reports[0]["best_epoch"] < reports[0]["epochs"]  # later evaluations were worse
    assert all(reports[0][key] == reports[1][key] for key in ("valid", "test", "cross_fitted"))


def test_validation_has_the_precision_of_training_and_the_report_that_of_predictions(data, tmp_path):
    out = tmp_path / "run"
    report = run(data, out, train__epochs=1, train__precision="bf16", train__calibration="none")
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    part, kept = Dataset.open(data).parts["valid"], bundle.load(out).model
    losses = {
        precision: metrics.log_loss(part.labels, metrics.sigmoid(score(kept, part.ids, precision=precision)))
        for precision in ("bf16", "float32")
    }
    assert losses["bf16"] == pytest.approx(min(e["log_loss"] for e in events if e["event"] == "valid"), abs=1e-9)
    assert losses["float32"] == pytest.approx(report["valid"]["log_loss"], abs=1e-9)
    assert losses["bf16"] != losses["float32"]


def test_training_stops_when_validation_does_not_improve(data, tmp_path):
    report = run(data, tmp_path / "run", train__lr=0.3, train__epochs=30, train__patience=1)
    assert report["epochs"] < 30
    assert report["best_epoch"] <= report["epochs"] - 2
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [e["log_loss"] for e in events if e["event"] == "valid"]
    assert losses.index(min(losses)) + 1 == report["best_epoch"]


def test_rows_of_weight_zero_do_not_count(tmp_path):
    """Every other row has its label turned round and weight 0: metrics and calibration see the rest alone."""
    log = World("demo").log(800).table
    keep = np.arange(800) % 2 == 0
    clicks = log["click"].to_numpy()
    labels = np.where(keep, clicks, 1 - clicks)
    spoilt = log.set_column(0, "click", pa.array(labels)).append_column("w", pa.array(keep.astype(float)))
    prepare({"train": lambda: iter([spoilt])}, tmp_path / "data", "click", weight="w")
    config = load_config(base={"model.name": "lr", "train.epochs": 2})
    found = train(config, tmp_path / "data", tmp_path / "run")
    part = Dataset.open(tmp_path / "data").parts["valid"]
    assert found["valid"]["positive_rate"] == pytest.approx(part.labels[part.weights > 0].mean())
    # Few rows of weight leave some of the level to the training rows; the others would nearly double it.
    assert found["valid"]["calibration"] == pytest.approx(1.0, abs=0.25)
    assert np.average(part.labels) > 1.5 * found["valid"]["positive_rate"]


def test_nan_stops_with_the_step(data, tmp_path):
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) at step \d+; lower train.lr"):
        run(data, tmp_path / "run", train__optimizer="sgd", train__lr=1e30, model__norm="none")
    assert not (tmp_path / "run" / "DONE").exists()


def test_another_run_is_never_overwritten(data, tmp_path):
    run(data, tmp_path / "run", train__epochs=1)
    with pytest.raises(TrainingError, match="already holds a finished run; choose another --out"):
        run(data, tmp_path / "run", train__epochs=1)
    with pytest.raises(ConfigError, match="did you mean 'dim'"):
        run(data, tmp_path / "new", model__dmi=3)
    assert not (tmp_path / "new").exists()


def test_l2_terms_are_what_they_say(data, tmp_path):
    """One SGD step with and without a penalty differ by lr times its gradient."""

    def weights(name, **overrides):
        base = {"train__optimizer": "sgd", "train__momentum": 0.0, "train__epochs": 1, "train__batch_size": 10**6}
        run(data, tmp_path / name, **base, train__lr=0.1, **overrides)
        return load_file(tmp_path / name / "bundle" / "weights.safetensors")

    torch.manual_seed(0)
    plain = weights("plain")
    key = "embedding.tables.0.weight"
    part = Dataset.open(data).training(seed=0)
    start = None
    for kind, reduction, scale in (("l2_full", "mean", None), ("l2", "mean", part.rows), ("l2", "sum", 1)):
        found = weights(f"{kind}-{reduction}", **{f"train__{kind}": 0.5, "train__l2_reduction": reduction})
        change = (plain[key] - found[key]).double()
        if kind == "l2_full":
            start = change / (0.1 * 0.5)  # lr * lambda * w
            continue
        offsets = np.array(Dataset.open(data).layout.column_offsets)
        counts = member_weights(part.shown(np.arange(part.rows)), offsets, Dataset.open(data).layout, start)
        torch.testing.assert_close(change, 0.1 * 0.5 / scale * counts, rtol=2e-3, atol=2e-6)


def member_weights(ids, offsets, layout, table):
    """The gradient of half the squared norms of all looked-up field vectors, by a slow loop over rows."""
    gradient = torch.zeros_like(table)
    for row in np.array(ids):
        for field in range(layout.fields):
            columns = [c for c in layout.columns_of([field]) if row[c] >= 0]
            places = [int(row[c] + offsets[c]) for c in columns]
            mean = table[places].mean(dim=0)
            for place in places:
                gradient[place] += mean / len(places)
    return gradient


KERNEL, ATTEND = "branches.0.interaction.{}kernel.entries", "branches.0.interaction.attend.weight"
DNN = [f"branches.0.classifier.layers.{number}.weight" for number in (0, 4)]
PENALISED = {
    "kfm": ({"dim": 3}, {"kernels": [KERNEL.format("")]}),
    "kfm, adaptive": ({"dim": 9, "adaptive": 1.5}, {"kernels": [KERNEL.format("")]}),
    "kpnn": ({"dim": 3, "hidden": (5,)}, {"kernels": [KERNEL.format("parts.1.part.")], "weights": DNN}),
    "afm": ({"dim": 3}, {"attention": [ATTEND]}),
    "nifm, adaptive": (
        {"dim": 9, "adaptive": 1.5, "subnet": (4, 1)},
        {"weights": [f"branches.0.interaction.weights.{number}.entries" for number in (0, 1)]},
    ),
    "pin": (
        {"dim": 3, "hidden": (5,), "subnet": (4, 3)},
        {"weights": [*DNN, *(f"branches.0.interaction.weights.{number}.entries" for number in (0, 1))]},
    ),
    "ccpm": (
        {"dim": 3, "hidden": (5,), "channels": (4,)},
        {"weights": ["branches.0.interaction.convolutions.0.weight", DNN[0], "branches.0.classifier.layers.3.weight"]},
    ),
}


@pytest.mark.parametrize("case", PENALISED)
def test_l2_of_each_group_of_dense_weights(data, tmp_path, case):
    """Of a penalty lambda/2 w^2 the gradient is lambda w, for the weights that the setting names and for no other."""
    scales = {"weights": 0.5, "kernels": 0.25, "attention": 0.125}
    (options, groups), name = PENALISED[case], case.split(",")[0]
    base = {f"train.l2_{group}": scales[group] for group in groups} | {"train.l2": 0.0, "model.name": name}
    config = load_config(base=base | {f"model.{key}": value for key, value in options.items()})
    model = drawn(build(name, Dataset.open(data).layout, options))
    network = Network(config, Dataset.open(data), tmp_path / "run", False, model)
    penalty = network.step.penalty({}, 100)
    parameters = dict(model.named_parameters())
    scale_of = {path: scales[group] for group, paths in groups.items() for path in paths}
    expected = sum(scale / 2 * (parameters[path] ** 2).sum().item() for path, scale in scale_of.items())
    assert penalty.item() == pytest.approx(expected, rel=1e-12)
    penalty.backward()
    for path, parameter in parameters.items():
        if path in scale_of:
            torch.testing.assert_close(parameter.grad, scale_of[path] * parameter.data, rtol=0, atol=1e-12)
        else:
            assert parameter.grad is None, path


@pytest.mark.parametrize(
    ("name", "setting", "needed"),
    [
        ("kpnn", "l2_attention", "attention"),
        ("fm", "l2_kernels", "kernels"),
        ("afm", "l2_kernels", "kernels"),
        ("kfm", "l2_weights", "a DNN, sub-networks or convolutions"),
    ],
)
def test_an_l2_that_would_be_for_nothing_is_refused(data, tmp_path, name, setting, needed):
    config = load_config(base={"model.name": name, f"train.{setting}": 1e-4})
    with pytest.raises(ConfigError, match=f"^train.{setting} needs a model with {needed}, found 0.0001 for {name}; "):
        train(config, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_no_validation_part_is_refused(tmp_path):
    log = World("demo").log(300).table
    prepare({"train": lambda: iter([log])}, tmp_path / "data", "click", split=Split((1.0, 0.0, 0.0)))
    with pytest.raises(BundleError, match="validation"):
        run(tmp_path / "data", tmp_path / "run")


def test_several_evaluations_an_epoch(data, tmp_path):
    run(data, tmp_path / "run", train__epochs=2, train__evaluations=3, train__patience=9)
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [e["step"] for e in events if e["event"] == "valid"]
    assert len(steps) == 6
    assert steps == sorted(set(steps))
    assert all(math.isfinite(e["log_loss"]) for e in events if e["event"] == "valid")


@pytest.mark.parametrize(
    ("settings", "rows", "expected"),
    [({}, 1000, 1.0), ({}, 400_000, 0.0), ({"batch_size": 50}, 1000, 0.0), ({"average": 0.0}, 1000, 0.0)]
    + [({"average": 2.5, "batch_size": 50}, 10**6, 2.5)],
)
def test_small_data_are_averaged_unless_told_otherwise(settings, rows, expected):
    assert average(TrainSettings(**settings), rows) == expected


def test_a_failed_run_makes_way_for_another(data, tmp_path):
    """A retry with another rate takes the folder, with --resume too; the same again goes on and fails again."""
    bad = {"train__optimizer": "sgd", "train__lr": 1e30, "model__norm": "none", "train__epochs": 1}
    for resume in (False, True):
        out = tmp_path / f"run{resume}"
        for again in (False, True):
            with pytest.raises(TrainingError, match="the loss is"):
                train(load_config(base=settings(**bad)), data, out, resume=again)
            assert (out / "FAILED").read_text().startswith("the loss is ")
        train(load_config(base=settings(train__epochs=1)), data, out, resume=resume)
        assert (out / "DONE").exists()
        assert not (out / "FAILED").exists()
        assert load_config(out / "config.toml").train.optimizer == "adam"


def test_a_failed_run_with_something_else_in_its_folder_stays(data, tmp_path):
    bad = {"train__optimizer": "sgd", "train__lr": 1e30, "model__norm": "none"}
    with pytest.raises(TrainingError, match="the loss is"):
        run(data, tmp_path / "run", **bad)
    (tmp_path / "run" / "notes.txt").write_text("precious")
    with pytest.raises(TrainingError, match="already holds something"):
        run(data, tmp_path / "run")


def test_scores_that_are_no_numbers_stop_the_run(data, tmp_path, monkeypatch):
    monkeypatch.setattr("fieldwise.train.distributed.score", lambda model, ids, precision: np.full(len(ids), np.nan))
    with pytest.raises(TrainingError, match=r"scores of validation rows are nan at step \d+; lower train.lr \(0.01\)"):
        run(data, tmp_path / "run", train__epochs=1)
    assert (tmp_path / "run" / "FAILED").exists()


@pytest.mark.parametrize(
    ("model", "options", "named"),
    [
        ("fnn", {"train__lr": 1e-9, "train__epochs": 1}, r"train.lr \(1e-09\)"),
        ("gbdt", {"model__lr": 1e-9, "model__rounds": 1}, r"model.lr \(1e-09\)"),
    ],
)
def test_a_run_that_has_learnt_nothing_says_so(data, tmp_path, model, options, named):
    if model == "gbdt":
        pytest.importorskip("xgboost")
    base = {"model.name": model, **{key.replace("__", "."): value for key, value in options.items()}}
    (found,) = train(load_config(base=base), data, tmp_path / "run")["warnings"]
    assert re.search(rf"^validation log loss is 0\.\d+ at its best, no better than the 0\.\d+ .*; lower {named}", found)


def test_a_run_that_has_learnt_something_does_not(trained, tmp_path):
    base = {"model.name": "lr", "train.lr": 0.05, "train.epochs": 5, "train.batch_size": 50}
    assert train(load_config(base=base), trained.data, tmp_path / "run")["warnings"] == []


def test_a_folder_that_is_being_trained_in_is_left_alone(data, tmp_path):
    config = load_config(base=settings(train__epochs=1))
    with start(config, Dataset.open(data), tmp_path / "run"):
        for resume in (False, True):
            with pytest.raises(FieldwiseError, match=rf"another process \(pid {os.getpid()}\) is training .*run; "):
                train(config, data, tmp_path / "run", resume=resume)
        assert not (tmp_path / "run" / "FAILED").exists()
    train(config, data, tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob(".*"))


def test_a_folder_is_let_go_when_its_checkpoint_cannot_be_read(data, tmp_path):
    config = load_config(base=settings(train__epochs=1))
    start(config, Dataset.open(data), tmp_path / "run").close()
    (tmp_path / "run" / "checkpoint" / "000000000001").mkdir(parents=True)
    errors = []
    for _ in range(2):
        with pytest.raises(BundleError, match="the checkpoint is damaged") as error:
            train(config, data, tmp_path / "run", resume=True)
        errors.append(error)  # with its traceback, which keeps the run


def test_a_run_whose_identity_is_damaged_is_one_line(data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "identity.json").write_text('{"data": 1')
    with pytest.raises(TrainingError, match=r"the run is damaged: .*; choose another --out"):
        train(load_config(base=settings()), data, tmp_path / "run", resume=True)


@pytest.mark.parametrize("model", ["fnn", "gbdt"])
@pytest.mark.parametrize("part", ["train", "valid", "weighted"])
def test_rows_of_one_class_are_refused_before_anything(tmp_path, part, model):
    """Rows of weight 0 are none."""
    if model == "gbdt":
        pytest.importorskip("xgboost")
    clicks, weights = np.arange(40) % 2, np.ones(40)
    held = np.zeros(40, int) if part == "valid" else clicks
    rows = {
        "train": {"click": clicks, "user": np.arange(40) % 3, "w": weights},
        "valid": {"click": held, "user": np.arange(40) % 3, "w": 1.0 - held if part == "weighted" else weights},
    }
    sources = {name: lambda own=own: iter([pa.table(own)]) for name, own in rows.items()}
    prepare(sources, tmp_path / "data", "click", weight="w")
    if part == "train":  # which prepare refuses, but a split of what it takes may come to
        np.save(tmp_path / "data" / "train" / "labels.npy", np.zeros(40, np.uint8))
    word, count = ("training" if part == "train" else "validation"), 20 if part == "weighted" else 40
    with pytest.raises(DataError, match=f"^{word} rows must be of both classes, found 0 of {count} positive; prepare"):
        train(load_config(base={"model.name": model}), tmp_path / "data", tmp_path / "run")
    assert not (tmp_path / "run").exists()
